#include "worker/serve.h"

#include <algorithm>
#include <utility>

#include "base/fixed_queue.h"
#include "base/within_memory.h"

namespace tessera::worker {
namespace {

constexpr auto kHelloTime = std::chrono::seconds(30);
constexpr auto kSendTime = std::chrono::seconds(10);
constexpr auto kIdleWait = std::chrono::milliseconds(60'000);

std::uint32_t microseconds(Clock::duration duration) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(us, 0, 0xffffffff));
}

WireError wire_error(ErrorCode code) {
  if (code == ErrorCode::invalid) return WireError::malformed;
  if (code == ErrorCode::not_found) return WireError::not_owned;
  return WireError::internal;
}

class Server final : public FrameTaker {
 public:
  Server(Channel& channel, const WorkerOffer& offer, const Agreement& agreed, JobHandler& handler,
         Stats& stats)
      : channel_(channel),
        version_(agreed.ack.version),
        counts_experts_(has_experts_away(agreed.hello)),
        patience_(offer.client_silence),
        handler_(handler),
        stats_(stats),
        queue_(agreed.ack.credits) {
    // A client may send a job while the result of another is on its way to it.
    channel_.take_while_sending(this);
  }
  ~Server() override { channel_.take_while_sending(nullptr); }

  Result<ServeEnd> run() {
    for (;;) {
      if (const auto asked = std::exchange(beat_asked_, std::nullopt)) {
        TESSERA_TRY(answer_beat(*asked));
        continue;
      }
      const std::size_t begun = channel_.begun();
      const Deadline wait = queue_.empty() ? after(patience_.value_or(kIdleWait)) : Deadline::min();
      Result<bool> came =
          std::exchange(set_aside_, false) ? true : channel_.receive(incoming_, wait);
      if (!came && came.error().code == ErrorCode::unavailable) return ServeEnd::peer_gone;
      if (!came) return std::move(came).error();
      if (*came) {
        if (incoming_.header.op == Op::bye) return ServeEnd::bye;
        TESSERA_TRY(handle());
        continue;
      }
      if (!queue_.empty()) {
        TESSERA_TRY(run_front());
        if (handler_.lost()) return ServeEnd::lost;
      } else if (patience_ && channel_.begun() == begun) {
        return ServeEnd::silent;
      }
    }
  }

  // While an answer is on its way: a frame goes where all do, so that no more jobs are in memory
  // than there are credits, and two. What wants an answer itself waits; a client that keeps to its
  // credits has one beat under way at most, and nothing else that would.
  Frame* place() override { return set_aside_ || queue_.full() ? nullptr : &incoming_; }
  void take() override {
    const FrameHeader& header = incoming_.header;
    if (is_job(header.op)) return enqueue();
    if (header.op == Op::cancel) return cancel(header.sequence);
    if (header.op == Op::near) return;
    if (is_beat(header.op) && !beat_asked_) {
      beat_asked_ = header;
    } else {
      set_aside_ = true;
    }
  }

 private:
  struct Job {
    Frame frame;
    Deadline arrival;
    bool cancelled = false;
  };
  static bool is_job(Op op) { return op == Op::compute_experts || op == Op::forward_layers; }
  static bool is_beat(Op op) { return op == Op::ping || op == Op::stats || op == Op::routed; }

  Status reply(FrameHeader header, std::span<const std::byte> body = {}) {
    header.version = version_;
    header.sequence = answering_;
    return channel_.send(header, body, after(kSendTime));
  }
  Status reply_error(WireError code, std::string text) {
    return reply({.op = Op::error}, encode(ErrorReply{.code = code, .text = std::move(text)}));
  }

  Status handle() {
    answering_ = incoming_.header.sequence;
    const Op op = incoming_.header.op;
    if (is_beat(op)) return answer_beat(incoming_.header);
    if (op == Op::cancel) {
      cancel(answering_);
    } else if (is_job(op) && queue_.full()) {
      ++stats_.failed;
      return reply_error(WireError::no_credit, "no credit left");
    } else if (is_job(op)) {
      enqueue();
    } else if (op != Op::error && op != Op::near) {  // that one only wakes
      return reply_error(WireError::unknown_op, op_name(op));
    }
    return {};
  }

  Status answer_beat(const FrameHeader& asked) {
    answering_ = asked.sequence;
    if (asked.op == Op::ping) return reply({.op = Op::pong});
    return asked.op == Op::stats ? tell_stats() : tell_routed(asked.layer);
  }

  Status tell_routed(std::uint16_t layer) {
    if (const Status counted = handler_.routed(layer, told_); !counted)
      return reply_error(wire_error(counted.error().code), counted.error().message);
    return reply({.op = Op::routed, .layer = layer}, told_);
  }

  Status tell_stats() {
    stats_.experts = handler_.expert_counts();
    encode(stats_, told_);
    return reply({.op = Op::stats}, told_);
  }

  void cancel(std::uint64_t sequence) {
    for (std::size_t i = 0; i < queue_.size(); ++i)
      if (queue_[i].frame.header.sequence == sequence) queue_[i].cancelled = true;
  }

  void enqueue() {
    // The memory of frames goes round, so that a steady stream allocates nothing.
    Job& job = queue_.push();
    std::swap(job.frame, incoming_);
    job.arrival = Clock::now();
    job.cancelled = false;
  }

  // The job that is answered counts among the others until it is.
  Status run_front() {
    const Status status = answer(queue_.front());
    queue_.pop();
    return status;
  }

  Status answer(const Job& job) {
    const FrameHeader& header = job.frame.header;
    answering_ = header.sequence;
    const Deadline start = Clock::now();
    if (job.cancelled) {
      ++stats_.cancelled;
      return reply({.op = Op::result, .layer = header.layer, .status = JobStatus::cancelled});
    }
    const auto limit = std::chrono::microseconds(header.deadline_us);
    if (header.deadline_us != 0 && start - job.arrival > limit) {
      ++stats_.expired;
      return reply({.op = Op::result, .layer = header.layer, .status = JobStatus::expired});
    }
    const Result<JobOutput> output = within_memory(
        [&] { return handler_.run(header, job.frame.body(), channel_.limits(), near_); });
    const Deadline end = Clock::now();
    stats_.busy_us += microseconds(end - start);
    if (!output) {
      ++stats_.failed;
      return reply_error(wire_error(output.error().code), output.error().message);
    }
    ++stats_.jobs;
    stats_.rows += header.rows;
    if (header.op == Op::compute_experts) stats_.pairs += header.items;
    if (counts_experts_) TESSERA_TRY(tell_stats());
    return reply({.op = Op::result,
                  .layer = header.layer,
                  .flags = output->flags,
                  .rows = output->rows,
                  .items = output->columns,
                  .out_type = output->type,
                  .queue_us = microseconds(start - job.arrival),
                  .compute_us = microseconds(end - start)},
                 output->body);
  }

  Channel& channel_;
  std::uint16_t version_;
  bool counts_experts_;
  std::optional<std::chrono::milliseconds> patience_;
  JobHandler& handler_;
  Stats& stats_;
  std::vector<std::byte> told_;  // of them, and of the routing
  Frame incoming_;
  FixedQueue<Job> queue_;  // as many as there are credits
  // Taken while an answer was on its way, to be answered next.
  std::optional<FrameHeader> beat_asked_;
  bool set_aside_ = false;  // what incoming_ holds
  std::uint64_t answering_ = 0;
  // Only a hint: not worth waiting for room.
  const Near near_ = [this] {
    (void)channel_.hand_over({.version = version_, .op = Op::near, .sequence = answering_}, {},
                             Deadline::min(), {});
  };
};

}  // namespace

Result<ServeEnd> serve(Channel& channel, const WorkerOffer& offer, JobHandler& handler,
                       Stats& stats) {
  const Prepare prepare = [&](const Hello& hello, const HelloAck& ack) {
    return handler.prepare(hello, ack);
  };
  const Result<Agreement> agreement = worker_handshake(channel, offer, prepare, after(kHelloTime));
  // One that only asked, or went before it said what it wanted.
  if (!agreement && agreement.error().code == ErrorCode::unavailable) return ServeEnd::peer_gone;
  if (!agreement) return agreement.error();
  Server server(channel, offer, *agreement, handler, stats);
  Result<ServeEnd> end = server.run();
  channel.close();
  if (!end && end.error().code == ErrorCode::unavailable) return ServeEnd::peer_gone;
  return end;
}

}  // namespace tessera::worker
