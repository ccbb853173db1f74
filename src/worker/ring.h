// RingSender, RingReceiver: the two ends of one direction of a shared ring.
//
// They never wait and make no system call; ring_channel.h adds spinning, sleeping and the socket.
// An index that the peer cannot have reached is an error (invalid); a header or length that fails
// its checks is one too. Nothing is read from shared memory twice.
//
// One thread sends and one receives. `wake_peer` is set when the peer sleeps and must be woken.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "worker/ring_memory.h"
#include "worker/transport.h"

namespace tessera::worker {

class RingSender {
 public:
  explicit RingSender(const RingView& ring) : ring_(ring) {}

  // False when there is no room now.
  Result<bool> try_send(const FrameHeader& header, Parts parts, bool& wake_peer);
  std::uint64_t capacity() const { return ring_.arena_bytes; }

  // Asks the receiver to wake this end once there is room.
  void announce_wait() { ring_.words->sender_waits.store(1); }

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
  Result<bool> try_receive(Frame& frame, const WireLimits& limits, bool& wake_peer);

  // Between announce_sleep and wake_up the sender wakes this end after a frame. Announce, then
  // look once more, then sleep.
  void announce_sleep() { ring_.words->receiver_asleep.store(1); }
  void wake_up() { ring_.words->receiver_asleep.store(0, std::memory_order_relaxed); }

 private:
  void copy_out(std::span<std::byte> bytes) const;

  RingView ring_;
  std::uint32_t consumed_ = 0;
  std::uint64_t tail_ = 0;
};

}  // namespace tessera::worker
