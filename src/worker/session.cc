#include "worker/session.h"

#include <algorithm>
#include <utility>

namespace tessera::worker {
namespace {

// A job goes at once into memory that its credit reserved, or into a socket that a live worker
// empties.
constexpr auto kSocketTime = std::chrono::seconds(1);
// Enough that 64 bytes are never left half written; what a stopped worker can hold up.
constexpr auto kPingTime = std::chrono::milliseconds(20);
constexpr std::uint64_t kPingSequence = 0;

}  // namespace

Session::Session(std::unique_ptr<Channel> channel, const Hello& hello, const HelloAck& ack)
    : channel_(std::move(channel)),
      ack_(ack),
      slots_(ack.credits),
      heard_(Clock::now().time_since_epoch().count()) {
  channel_->set_limits(agreed_limits(hello, ack));
}

Status Session::send(FrameHeader header, Parts parts, Deadline deadline) {
  header.version = ack_.version;
  const std::lock_guard lock(send_mutex_);
  return channel_->send(header, parts, deadline);
}

Result<Ticket> Session::submit(FrameHeader header, Parts parts) {
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
    slot->submitted = Clock::now();
    ticket = {static_cast<std::size_t>(slot - slots_.begin()), slot->sequence};
  }
  header.sequence = ticket.sequence;
  const bool room = channel_->bulk_both_ways();
  Status sent = send(header, parts, room ? Deadline::min() : after(kSocketTime));
  if (sent) return ticket;
  const std::lock_guard lock(slots_mutex_);
  slots_[ticket.slot].state = Slot::State::free;
  return std::move(sent).error();
}

void Session::deliver(Frame& frame) {
  heard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  if (frame.header.op != Op::result && frame.header.op != Op::error) return;
  const std::lock_guard lock(slots_mutex_);
  for (Slot& slot : slots_) {
    if (slot.sequence != frame.header.sequence) continue;
    if (slot.state == Slot::State::abandoned) slot.state = Slot::State::free;
    if (slot.state != Slot::State::waiting) return;
    std::swap(slot.reply, frame);
    slot.state = Slot::State::answered;
    return;
  }
}

Result<bool> Session::wait(const Ticket& ticket, JobReply& reply, Deadline deadline) {
  for (;;) {
    {
      const std::lock_guard lock(slots_mutex_);
      Slot& slot = slots_[ticket.slot];
      if (slot.state == Slot::State::answered && slot.sequence == ticket.sequence) {
        slot.state = Slot::State::free;
        reply = {slot.reply.header, std::nullopt, slot.reply.body()};
        break;
      }
    }
    const std::lock_guard lock(receive_mutex_);
    TESSERA_ASSIGN(const bool came, channel_->receive(incoming_, deadline));
    if (came) {
      deliver(incoming_);
    } else {
      // The heartbeat's thread may have taken the reply just before.
      const std::lock_guard slots_lock(slots_mutex_);
      if (slots_[ticket.slot].state != Slot::State::answered) return false;
    }
  }
  if (reply.header.op == Op::error) {
    TESSERA_ASSIGN(reply.error, decode_error(reply.body));
  }
  return true;
}

void Session::abandon(const Ticket& ticket) {
  {
    const std::lock_guard lock(slots_mutex_);
    Slot& slot = slots_[ticket.slot];
    if (slot.sequence != ticket.sequence) return;
    if (slot.state == Slot::State::answered) slot.state = Slot::State::free;
    if (slot.state != Slot::State::waiting) return;
    slot.state = Slot::State::abandoned;
  }
  (void)send({.op = Op::cancel, .sequence = ticket.sequence}, {}, Deadline::min());
}

Status Session::beat() {
  if (const std::unique_lock lock(receive_mutex_, std::try_to_lock); lock.owns_lock()) {
    for (;;) {
      TESSERA_ASSIGN(const bool came, channel_->receive(incoming_, Deadline::min()));
      if (!came) break;
      deliver(incoming_);
    }
  }
  const std::unique_lock lock(send_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return {};  // a job is going out: the session is not idle
  const Status sent = channel_->send(
      {.version = ack_.version, .op = Op::ping, .sequence = kPingSequence}, after(kPingTime));
  // A worker that is behind with its reading is no reason to give it up yet.
  if (!sent && sent.error().code == ErrorCode::exhausted) return {};
  return sent;
}

Session::Health Session::health() const {
  Health health{.heard = Deadline(Clock::duration(heard_.load(std::memory_order_relaxed)))};
  const std::lock_guard lock(slots_mutex_);
  for (const Slot& slot : slots_) {
    const bool given_up = slot.state == Slot::State::abandoned;
    if (!given_up && slot.state != Slot::State::waiting) continue;
    health.abandoned += given_up ? 1 : 0;
    health.oldest_job = std::min(health.oldest_job.value_or(slot.submitted), slot.submitted);
  }
  return health;
}

Status Session::say_bye() {
  return send({.op = Op::bye}, {}, after(std::chrono::milliseconds(100)));
}

}  // namespace tessera::worker
