#include "worker/session.h"

#include <algorithm>
#include <utility>

namespace tessera::worker {
namespace {

// Between two looks whether a socket takes more of a job.
constexpr auto kPushPause = std::chrono::milliseconds(1);
constexpr auto kByeTime = std::chrono::milliseconds(100);
constexpr auto kBreachTime = std::chrono::milliseconds(100);
constexpr std::uint64_t kBeatSequence = 0;
// A job is late after so many times what one of its rows took, a second at the least; and the first
// after some seconds.
constexpr double kLateFactor = 5;
constexpr auto kLeastLate = std::chrono::seconds(1);
constexpr auto kFirstLate = std::chrono::seconds(5);

// `usual_us` 0: not known.
bool is_late(Clock::duration age, double usual_us) {
  if (usual_us <= 0) return age >= kFirstLate;
  return age >= kLeastLate &&
         age >= std::chrono::duration<double, std::micro>(kLateFactor * usual_us);
}

}  // namespace

Session::Session(std::unique_ptr<Channel> channel, const Hello& hello, const HelloAck& ack,
                 RoutingCounts* counts)
    : channel_(std::move(channel)),
      hello_(hello),
      ack_(ack),
      slots_(ack.credits),
      counts_experts_(has_experts_away(hello)),
      told_experts_(hello, Clock::now()),
      told_routing_(hello, hello.layers.count_routing ? counts : nullptr),
      heard_(Clock::now().time_since_epoch().count()) {
  channel_->set_limits(agreed_limits(hello, ack));
}

Result<Ticket> Session::submit(FrameHeader header, Parts parts, const SendTime& time) {
  Ticket ticket;
  {
    const std::lock_guard lock(slots_mutex_);
    const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                   [](const Slot& s) { return s.state == Slot::State::free; });
    if (slot == slots_.end())
      return Error::make(ErrorCode::exhausted, "all {} jobs of the worker are under way",
                         slots_.size());
    slot->state = Slot::State::waiting;
    slot->sequence = next_sequence_++;
    slot->untold = false;
    slot->near = false;
    slot->rows = header.rows;
    slot->items = header.items;
    slot->counted = false;
    slot->submitted = Clock::now();
    told_experts_.sent(header.rows);
    ticket = {static_cast<std::size_t>(slot - slots_.begin()), slot->sequence};
  }
  header.sequence = ticket.sequence;
  header.version = ack_.version;
  // A job goes at once into memory that its credit reserved, or into a socket that a live worker
  // empties.
  const Deadline deadline = channel_->reserves_room() ? Deadline::min() : after(time.all);
  Status sent;
  {
    const std::lock_guard sending(send_mutex_);
    sent = channel_->hand_over(header, parts, deadline, time.stuck);
  }
  if (sent) return ticket;
  const std::lock_guard lock(slots_mutex_);
  slots_[ticket.slot].state = Slot::State::free;
  return std::move(sent).error();
}

// With slots_mutex_ held.
Status Session::take_counts(const Frame& frame) {
  const auto news = [&]() -> Result<ExpertCounts> {
    TESSERA_ASSIGN(const Stats stats, decode_stats(frame.body()));
    return told_experts_.take(stats.experts, Clock::now());
  }();
  if (!news) {
    channel_->close();
    return news.error();
  }
  for (const ExpertCountField& field : kExpertCountFields)
    experts_.*field.value += (*news).*field.value;
  return {};
}

// With slots_mutex_ held.
Status Session::take_routing(const Frame& frame) {
  Status taken = told_routing_.take(frame.body());
  if (!taken) channel_->close();
  return taken;
}

// With slots_mutex_ held.
Status Session::deliver(Frame& frame) {
  const FrameHeader& header = frame.header;
  if (!known_op(header.op)) return {};
  heard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  if (answers_beat(header)) return header.op == Op::routed ? take_routing(frame) : Status();
  Slot* const job = under_way(header.sequence);
  if (header.op == Op::stats && counts_experts_ && job && !std::exchange(job->counted, true))
    return take_counts(frame);
  if (header.op == Op::near && job && !std::exchange(job->near, true)) return {};
  if (header.op == Op::result || header.op == Op::error) {
    for (Slot& slot : slots_) {
      if (slot.sequence != header.sequence) continue;
      if (slot.state != Slot::State::waiting && slot.state != Slot::State::abandoned) break;
      told_routing_.answered(slot.rows);
      if (slot.state == Slot::State::abandoned) {
        slot.state = Slot::State::free;
        if (header.op == Op::result && header.status == JobStatus::ok)
          late_ = {slot.items, at_most_since(slot.submitted, header.compute_us)};
        return {};
      }
      pace_.learn(slot.rows,
                  std::chrono::duration<double, std::micro>(Clock::now() - slot.submitted).count());
      std::swap(slot.reply, frame);
      slot.state = Slot::State::answered;
      take_room();
      return {};
    }
  }
  channel_->close();
  return Error::make(ErrorCode::invalid, "{}: the worker sent {} that nothing asked for",
                     channel_->describe(), op_name(header.op));
}

// The next frame goes where there is room already, so that there is no more of it than the frames
// that are in use. With slots_mutex_ held, by whoever may receive.
void Session::take_room() {
  for (Slot& slot : slots_)
    if (slot.state != Slot::State::answered) incoming_.take_room(slot.reply);
}

// With slots_mutex_ held. The job that is not answered; none has number 0.
Session::Slot* Session::under_way(std::uint64_t sequence) {
  for (Slot& slot : slots_) {
    const bool open = slot.state == Slot::State::waiting || slot.state == Slot::State::abandoned;
    if (open && slot.sequence == sequence) return &slot;
  }
  return nullptr;
}

// Takes a frame that comes before the deadline, for whoever waits for it. `lock` is of slots_mutex_
// and is given up meanwhile.
Result<bool> Session::receive_one(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  receiving_ = true;
  lock.unlock();
  Result<bool> came = channel_->receive(incoming_, deadline);
  lock.lock();
  receiving_ = false;
  if (came.ok() && *came)
    if (Status wanted = deliver(incoming_); !wanted) came = std::move(wanted).error();
  if (!came && came.error().code == ErrorCode::invalid && !breach_) breach_ = came.error();
  received_.notify_all();
  return came;
}

// False while something of a job, or a CANCEL, is left that could not go out. With slots_mutex_
// held.
bool Session::push_rest() {
  if (!channel_->has_rest() && !untold_) return true;
  const std::unique_lock sending(send_mutex_, std::try_to_lock);
  if (!sending.owns_lock()) return false;
  const Result<bool> out = channel_->flush(Deadline::min());
  if (!out) return true;  // of the connection, and whoever receives is told
  return *out && tell_abandoned();
}

// With both mutexes held.
bool Session::tell_abandoned() {
  for (Slot& slot : slots_) {
    if (slot.state != Slot::State::abandoned || !slot.untold) continue;
    const Status sent =
        channel_->hand_over({.version = ack_.version, .op = Op::cancel, .sequence = slot.sequence},
                            {}, Deadline::min(), {});
    if (!sent && sent.error().code == ErrorCode::exhausted) return false;
    slot.untold = false;
  }
  untold_ = false;
  return true;
}

void Session::announce() {
  const std::unique_lock sending(send_mutex_, std::try_to_lock);
  if (!sending.owns_lock()) return;
  (void)channel_->hand_over({.version = ack_.version, .op = Op::near}, {}, Deadline::min(), {});
}

Result<bool> Session::wait(const Ticket& ticket, JobReply& reply, Deadline deadline,
                           const std::function<void()>& near) {
  std::unique_lock lock(slots_mutex_);
  Slot& slot = slots_[ticket.slot];
  const auto answered = [&] {
    return slot.state == Slot::State::answered && slot.sequence == ticket.sequence;
  };
  // What has come by the deadline is looked through all the same.
  std::size_t left = most_waiting();
  bool told = !near;
  while (!answered()) {
    if (slot.near && !std::exchange(told, true)) {
      lock.unlock();  // it may go on to another connection
      near();
      lock.lock();
      continue;
    }
    const Deadline until = push_rest() ? deadline : std::min(deadline, after(kPushPause));
    if (receiving_) {
      if (Clock::now() < deadline) received_.wait_until(lock, until);
      if (Clock::now() >= deadline && !answered()) return false;
      continue;
    }
    TESSERA_ASSIGN(const bool came, receive_one(lock, until));
    const bool over = Clock::now() >= deadline && (!came || --left == 0);
    if (over && !answered()) return false;
  }
  slot.state = Slot::State::free;
  std::swap(slot.reply, reply.frame);
  if (!receiving_) take_room();
  lock.unlock();
  reply.header = reply.frame.header;
  reply.body = reply.frame.body();
  reply.error.reset();
  if (reply.header.op == Op::error) {
    TESSERA_ASSIGN(reply.error, decode_error(reply.body));
  }
  return true;
}

void Session::abandon(const Ticket& ticket) {
  const std::lock_guard lock(slots_mutex_);
  Slot& slot = slots_[ticket.slot];
  if (slot.sequence != ticket.sequence) return;
  if (slot.state == Slot::State::answered) slot.state = Slot::State::free;
  if (slot.state != Slot::State::waiting) return;
  slot.state = Slot::State::abandoned;
  slot.untold = untold_ = true;
  push_rest();
}

std::optional<Session::Late> Session::take_late() {
  const std::lock_guard lock(slots_mutex_);
  return std::exchange(late_, std::nullopt);
}

Status Session::beat() {
  Status alive = look_and_ask();
  if (alive && !channel_->closed()) return alive;
  std::unique_lock lock(slots_mutex_);
  // Whoever received the last frame closed the channel before it could say here why; the worker may
  // have ended since.
  received_.wait_for(lock, kBreachTime, [this] { return !receiving_; });
  return breach_ ? Status(*breach_) : alive;
}

Status Session::look_and_ask() {
  {
    std::unique_lock lock(slots_mutex_);
    for (std::size_t left = most_waiting(); !receiving_ && left > 0; --left) {
      TESSERA_ASSIGN(const bool came, receive_one(lock, Deadline::min()));
      if (!came) break;
    }
    if (receiving_) channel_->look_around();
    // While a job computes nothing is read, and they would pile up.
    if (!push_rest() || beat_out_) return {};
  }
  const std::unique_lock sending(send_mutex_, std::try_to_lock);
  if (!sending.owns_lock()) return {};  // a job is going out: the session is not idle
  const Status sent = channel_->hand_over(next_beat(), {}, Deadline::min(), {});
  // A worker that is behind with its reading is no reason to give it up yet.
  if (sent || sent.error().code != ErrorCode::exhausted) return sent;
  forget_beat();
  return {};
}

// Expected to be answered from now on, since that may be before send() is back.
FrameHeader Session::next_beat() {
  const std::lock_guard lock(slots_mutex_);
  FrameHeader beat{.version = ack_.version, .op = Op::ping, .sequence = kBeatSequence};
  if (const std::optional<std::uint16_t> layer = told_routing_.ask()) {
    beat.op = Op::routed;
    beat.layer = *layer;
  }
  beat_out_ = beat;
  return beat;
}

void Session::forget_beat() {
  const std::lock_guard lock(slots_mutex_);
  beat_out_.reset();
}

// With slots_mutex_ held.
bool Session::answers_beat(const FrameHeader& header) {
  if (!beat_out_) return false;
  const bool ping = beat_out_->op == Op::ping;
  if (ping ? header.op != Op::pong : header.op != Op::routed || header.layer != beat_out_->layer)
    return false;
  beat_out_.reset();
  return true;
}

void Session::collect_routing(Deadline deadline) {
  std::unique_lock lock(slots_mutex_);
  const auto untold = [&] {
    return told_routing_.is_due() || (beat_out_ && beat_out_->op == Op::routed);
  };
  while (untold() && Clock::now() < deadline && !channel_->closed()) {
    lock.unlock();
    if (!look_and_ask()) return;
    lock.lock();
    if (receiving_ || !beat_out_)
      received_.wait_until(lock, std::min(deadline, after(kPushPause)));
    else if (!receive_one(lock, deadline))
      return;
  }
}

ExpertCounts Session::take_experts() {
  const std::lock_guard lock(slots_mutex_);
  return std::exchange(experts_, {});
}

Session::Health Session::health() const {
  Health health{.heard = Deadline(Clock::duration(heard_.load(std::memory_order_relaxed)))};
  const std::lock_guard lock(slots_mutex_);
  const Slot* oldest = nullptr;
  for (const Slot& slot : slots_) {
    const bool given_up = slot.state == Slot::State::abandoned;
    if (!given_up && slot.state != Slot::State::waiting) continue;
    health.abandoned += given_up ? 1 : 0;
    if (oldest == nullptr || slot.submitted < oldest->submitted) oldest = &slot;
  }
  if (oldest == nullptr) return health;
  health.oldest_job = oldest->submitted;
  health.late = is_late(Clock::now() - oldest->submitted, pace_.us(oldest->rows));
  return health;
}

void Session::give_up(const GivenUp& reason) {
  {
    const std::lock_guard lock(slots_mutex_);
    if (given_up_.why.empty()) given_up_ = reason;
  }
  close();
}

Session::GivenUp Session::given_up() const {
  const std::lock_guard lock(slots_mutex_);
  return given_up_;
}

Status Session::say_bye() {
  const std::unique_lock sending(send_mutex_, std::try_to_lock);
  if (sending.owns_lock())
    return channel_->send({.version = ack_.version, .op = Op::bye}, after(kByeTime));
  // A job is going out, perhaps to a worker that reads no more: only this ends that.
  close();
  return Error::make(ErrorCode::unavailable, "{}: closed while a job was sent",
                     channel_->describe());
}

}  // namespace tessera::worker
