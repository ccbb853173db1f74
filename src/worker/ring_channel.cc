#include "worker/ring_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "base/pause.h"
#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

constexpr std::chrono::nanoseconds kLeastSpin = std::chrono::microseconds(1);
// Every so many waits this long a spin is tried, whatever was learnt.
constexpr std::uint32_t kTrialEvery = 16;
// The end of a peer that could not close is noticed so late at most.
constexpr auto kLongestSleep = std::chrono::milliseconds(50);

}  // namespace

RingChannel::RingChannel(Fd socket, RingMemory memory, RingEnd end, const SpinOptions& spin)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      sender_(end == RingEnd::client ? memory_.to_worker() : memory_.to_client()),
      receiver_(end == RingEnd::client ? memory_.to_client() : memory_.to_worker()),
      // With one core the peer cannot answer while this end spins.
      max_spin_(std::thread::hardware_concurrency() > 1 ? spin.max_spin
                                                        : std::chrono::nanoseconds(0)),
      spin_(max_spin_) {}

Error RingChannel::fail(Error error) {
  close();
  return std::move(error).in(describe());
}

Error RingChannel::gone() {
  return fail(Error::make(ErrorCode::unavailable, "the peer is gone"));
}

Status RingChannel::put(const FrameHeader& header, Parts parts, Deadline deadline) {
  if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", describe());
  if (header.body_bytes > sender_.capacity())
    return Error::make(ErrorCode::invalid, "{}: {} of {} bytes, the arena holds {}", describe(),
                       op_name(header.op), header.body_bytes, sender_.capacity());
  for (bool announced = false;;) {
    Result<bool> sent = sender_.try_send(header, parts);
    if (!sent) return fail(std::move(sent).error());
    if (*sent) return {};
    if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", describe());
    const Deadline now = Clock::now();
    if (now >= deadline)
      return Error::make(ErrorCode::exhausted, "{}: no room for {} before the deadline", describe(),
                         op_name(header.op));
    if (announced) {
      sender_.sleep(std::min(deadline, now + kLongestSleep));
      if (wait_for(socket_.get(), 0, Deadline::min()).hung_up) return gone();
    } else {
      sender_.announce_sleep();
    }
    announced = !announced;
  }
}

Result<bool> RingChannel::take(Frame& frame) {
  Result<bool> came = receiver_.try_receive(frame, limits());
  if (!came) return fail(std::move(came).error());
  if (*came) announcement_.saw(frame.header.op);
  return *came;
}

Result<bool> RingChannel::get(Frame& frame, Deadline deadline) {
  if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", describe());
  TESSERA_ASSIGN(const bool at_once, take(frame));
  if (at_once) return true;
  const Deadline start = Clock::now();
  if (start >= deadline) return peek(frame);
  if (announcement_.pending()) {
    TESSERA_ASSIGN(const bool came,
                   await_announced(frame, std::min(deadline, start + kAnnouncedSpin)));
    return came ? came : sleep(frame, deadline);
  }
  const bool trial = ++waits_ % kTrialEvery == 0;
  const std::chrono::nanoseconds limit = trial ? max_spin_ : spin_;
  TESSERA_ASSIGN(const bool soon, spin(frame, std::min(deadline, start + limit)));
  // Spinning pays where it is the frame that ends it. Where it is not, either nothing is going on
  // or the two ends share a core, and spinning keeps the peer from answering.
  spin_ = soon ? max_spin_ : std::max(kLeastSpin, spin_ / 2);
  if (soon) return true;
  return sleep(frame, deadline);
}

Result<bool> RingChannel::peek(Frame& frame) {
  if (!wait_for(socket_.get(), 0, Deadline::min()).hung_up) return false;
  TESSERA_ASSIGN(const bool last, take(frame));
  if (!last) return gone();
  return true;
}

Result<bool> RingChannel::spin(Frame& frame, Deadline until) {
  do {
    for (int i = 0; i < 16; ++i) {
      TESSERA_ASSIGN(const bool came, take(frame));
      if (came) return true;
      pause();
    }
  } while (Clock::now() < until && !closed());
  return false;
}

Result<bool> RingChannel::await_announced(Frame& frame, Deadline until) {
  announcement_.used();
  for (;;) {
    TESSERA_ASSIGN(const bool came, spin(frame, Deadline::min()));
    if (came || Clock::now() >= until || closed()) return came;
    std::this_thread::yield();  // whom it waits for may need this core
  }
}

Result<bool> RingChannel::sleep(Frame& frame, Deadline deadline) {
  for (;;) {
    receiver_.announce_sleep();
    Result<bool> before = take(frame);
    if (before.ok() && !*before && !closed_.load())
      receiver_.sleep(std::min(deadline, Clock::now() + kLongestSleep));
    receiver_.wake_up();
    if (!before || *before) return before;
    TESSERA_ASSIGN(const bool after, take(frame));
    if (after) return true;
    TESSERA_ASSIGN(const bool last, peek(frame));
    if (last) return true;
    if (Clock::now() >= deadline) return false;
  }
}

void RingChannel::close() {
  if (closed_.exchange(true)) return;
  ::shutdown(socket_.get(), SHUT_RDWR);
  sender_.rouse();
  receiver_.rouse();
}

}  // namespace tessera::worker
