// RingSender, RingReceiver: the two ends of one direction of a shared ring.
//
// ring_channel.h adds spinning, deadlines and the socket. What they do makes a system call only
// where the peer sleeps, to wake it. An index that the peer cannot have reached is an error
// (invalid); a header or length that fails its checks is one too. Nothing is read from shared
// memory twice.
//
// One thread sends and one receives; rouse() is for any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "worker/futex.h"
#include "worker/ring_memory.h"
#include "worker/transport.h"

namespace tessera::worker {

inline void rouse_both(RingWords& words) {
  wake(words.receiver_asleep);
  wake(words.sender_asleep);
}

class RingSender {
 public:
  explicit RingSender(const RingView& ring) : ring_(ring) {}

  // False when there is no room now.
  Result<bool> try_send(const FrameHeader& header, Parts parts);
  std::uint64_t capacity() const { return ring_.arena_bytes; }

  // Announce, then try once more, then sleep: until there is room, or for no reason.
  void announce_sleep() { ring_.words->sender_asleep.store(1); }
  void sleep(Deadline until) { sleep_on(ring_.words->sender_asleep, until); }
  // Whoever sleeps at either end of this direction looks around.
  void rouse() { rouse_both(*ring_.words); }

 private:
  void copy_in(std::span<const std::byte> bytes);

  RingView ring_;
  std::uint32_t produced_ = 0;
  std::uint32_t consumed_ = 0;                    // as last seen, checked
  std::uint64_t head_ = 0;                        // bytes ever put into the arena
  std::uint64_t tail_ = 0;                        // bytes that the receiver is done with
  std::array<std::uint64_t, kRingSlots> ends_{};  // head_ after each slot's body
};

class RingReceiver {
 public:
  explicit RingReceiver(const RingView& ring) : ring_(ring) {}

  // False when the ring is empty.
  Result<bool> try_receive(Frame& frame, const WireLimits& limits);

  // Between announce_sleep and wake_up the sender wakes this end after a frame. Announce, then
  // look once more, then sleep.
  void announce_sleep() { ring_.words->receiver_asleep.store(1); }
  void sleep(Deadline until) { sleep_on(ring_.words->receiver_asleep, until); }
  void wake_up() { ring_.words->receiver_asleep.store(0, std::memory_order_relaxed); }
  void rouse() { rouse_both(*ring_.words); }

 private:
  void copy_out(std::span<std::byte> bytes) const;

  RingView ring_;
  std::uint32_t consumed_ = 0;
  std::uint64_t tail_ = 0;
};

}  // namespace tessera::worker
