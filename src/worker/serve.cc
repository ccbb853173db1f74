#include "worker/serve.h"

#include <algorithm>
#include <utility>

#include "base/fixed_queue.h"
#include "worker/within_memory.h"

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

class Server {
 public:
  Server(Channel& channel, const WorkerOffer& offer, const HelloAck& ack, JobHandler& handler,
         Stats& stats)
      : channel_(channel),
        version_(ack.version),
        patience_(offer.client_silence),
        handler_(handler),
        stats_(stats),
        queue_(ack.credits) {}

  Result<ServeEnd> run() {
    for (;;) {
      const std::size_t begun = channel_.begun();
      const Deadline wait = queue_.empty() ? after(patience_.value_or(kIdleWait)) : Deadline::min();
      Result<bool> came = channel_.receive(incoming_, wait);
      if (!came && came.error().code == ErrorCode::unavailable) return ServeEnd::peer_gone;
      if (!came) return std::move(came).error();
      if (*came) {
        if (incoming_.header.op == Op::bye) return ServeEnd::bye;
        TESSERA_TRY(take());
        continue;
      }
      if (!queue_.empty()) {
        TESSERA_TRY(run_front());
      } else if (patience_ && channel_.begun() == begun) {
        return ServeEnd::silent;
      }
    }
  }

 private:
  struct Job {
    Frame frame;
    Deadline arrival;
    bool cancelled = false;
  };

  Status reply(FrameHeader header, std::span<const std::byte> body = {}) {
    header.version = version_;
    header.sequence = answering_;
    return channel_.send(header, body, after(kSendTime));
  }
  Status reply_error(WireError code, std::string text) {
    return reply({.op = Op::error}, encode(ErrorReply{.code = code, .text = std::move(text)}));
  }

  Status take() {
    answering_ = incoming_.header.sequence;
    switch (incoming_.header.op) {
      case Op::compute_experts:
      case Op::forward_layers:
        return enqueue();
      case Op::cancel:
        for (std::size_t i = 0; i < queue_.size(); ++i)
          if (queue_[i].frame.header.sequence == incoming_.header.sequence)
            queue_[i].cancelled = true;
        return {};
      case Op::ping:
        return reply({.op = Op::pong});
      case Op::stats:
        stats_.experts = handler_.expert_counts();
        return reply({.op = Op::stats}, encode(stats_));
      case Op::error:
        return {};
      default:
        return reply_error(WireError::unknown_op, op_name(incoming_.header.op));
    }
  }

  Status enqueue() {
    if (queue_.full()) {
      ++stats_.failed;
      return reply_error(WireError::no_credit, "no credit left");
    }
    // The memory of frames goes round, so that a steady stream allocates nothing.
    Job& job = queue_.push();
    std::swap(job.frame, incoming_);
    job.arrival = Clock::now();
    job.cancelled = false;
    return {};
  }

  // Frames that come meanwhile stay in the channel.
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
    const Result<JobOutput> output =
        within_memory([&] { return handler_.run(header, job.frame.body(), channel_.limits()); });
    const Deadline end = Clock::now();
    stats_.busy_us += microseconds(end - start);
    if (!output) {
      ++stats_.failed;
      return reply_error(wire_error(output.error().code), output.error().message);
    }
    ++stats_.jobs;
    stats_.rows += header.rows;
    if (header.op == Op::compute_experts) stats_.pairs += header.items;
    return reply({.op = Op::result,
                  .layer = header.layer,
                  .rows = output->rows,
                  .items = output->columns,
                  .out_type = output->type,
                  .queue_us = microseconds(start - job.arrival),
                  .compute_us = microseconds(end - start)},
                 output->body);
  }

  Channel& channel_;
  std::uint16_t version_;
  std::optional<std::chrono::milliseconds> patience_;
  JobHandler& handler_;
  Stats& stats_;
  Frame incoming_;
  FixedQueue<Job> queue_;  // as many as there are credits
  std::uint64_t answering_ = 0;
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
  const HelloAck& ack = agreement->ack;
  // A client that sends a job while the result of another is on its way to it.
  channel.receive_while_sending(std::size_t{2} * ack.credits);
  Server server(channel, offer, ack, handler, stats);
  Result<ServeEnd> end = server.run();
  channel.close();
  if (!end && end.error().code == ErrorCode::unavailable) return ServeEnd::peer_gone;
  return end;
}

}  // namespace tessera::worker
