#include "worker/ring_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

constexpr std::chrono::nanoseconds kLeastSpin = std::chrono::microseconds(1);
// Every so many waits this long a spin is tried, whatever was learnt.
constexpr std::uint32_t kTrialEvery = 16;
// A full ring is rare (credits keep it from filling), so a lost wake-up there may cost this much.
constexpr auto kFullRingNap = std::chrono::milliseconds(1);

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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

Status RingChannel::send(FrameHeader header, Parts parts, Deadline deadline) {
  if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", describe());
  header.body_bytes = 0;
  for (const std::span<const std::byte> part : parts) header.body_bytes += part.size();
  if (header.body_bytes > sender_.capacity())
    return Error::make(ErrorCode::invalid, "{}: {} of {} bytes, the arena holds {}", describe(),
                       op_name(header.op), header.body_bytes, sender_.capacity());
  for (bool waited = false;;) {
    bool wake_peer = false;
    Result<bool> sent = sender_.try_send(header, parts, wake_peer);
    if (!sent) return fail(std::move(sent).error());
    if (wake_peer) ring_bell();
    if (*sent) return {};
    if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", describe());
    const Deadline now = Clock::now();
    if (now >= deadline)
      return Error::make(ErrorCode::exhausted, "{}: no room for {} before the deadline", describe(),
                         op_name(header.op));
    if (!waited) {
      sender_.announce_wait();
      waited = true;
      continue;
    }
    // The receiving thread owns the bells of the socket, so only its end is waited for here.
    if (wait_for(socket_.get(), 0, std::min(deadline, now + kFullRingNap)).hung_up) return gone();
  }
}

Result<bool> RingChannel::take(Frame& frame) {
  bool wake_peer = false;
  Result<bool> came = receiver_.try_receive(frame, limits(), wake_peer);
  if (!came) return fail(std::move(came).error());
  if (wake_peer) ring_bell();
  return *came;
}

Result<bool> RingChannel::receive(Frame& frame, Deadline deadline) {
  if (closed()) return Error::make(ErrorCode::unavailable, "{}: closed", describe());
  TESSERA_ASSIGN(const bool at_once, take(frame));
  if (at_once) return true;
  const Deadline start = Clock::now();
  if (start >= deadline) return peek(frame);
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

Result<bool> RingChannel::sleep(Frame& frame, Deadline deadline) {
  for (;;) {
    receiver_.announce_sleep();
    Result<bool> came = take(frame);
    if (!came || *came) {
      receiver_.wake_up();
      return came;
    }
    const Readiness woken = wait_for(socket_.get(), POLLIN, deadline);
    receiver_.wake_up();
    const bool open = !woken.ready || drain_bells();
    TESSERA_ASSIGN(const bool after, take(frame));
    if (after) return true;
    if (!open || woken.hung_up || closed()) return gone();
    if (Clock::now() >= deadline) return false;
  }
}

bool RingChannel::drain_bells() {
  std::array<std::byte, 256> bells;
  const ssize_t n = ::recv(socket_.get(), bells.data(), bells.size(), MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

void RingChannel::ring_bell() {
  // A full socket has been rung already; a dead peer is noticed by who waits for it.
  const std::byte bell{1};
  (void)!::send(socket_.get(), &bell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void RingChannel::close() {
  if (!closed_.exchange(true)) ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace tessera::worker
