// Channel: a connection that carries frames, both ways, between a client and a worker.
//
//   TESSERA_TRY(channel->send({.op = Op::ping, .sequence = 7}, {}, after(10ms)));
//   Frame frame;
//   TESSERA_ASSIGN(const bool came, channel->receive(frame, after(10ms)));
//   if (came && frame.header.op == Op::pong) ...
//
// Two kinds: RingChannel (shared memory, one host) and StreamChannel (unix and tcp sockets); they
// differ in latency only. connect.h makes them.
//
// Trust: the peer is not believed. A frame that receive() returns has passed decode_header and
// check_frame under this end's limits, before its body was read or memory for it allocated; the
// body lies in the Frame's own memory, out of the peer's reach, and there it has the checksum that
// its header names: whatever the peer does to memory that is shared, what was checked stays. That
// finds bodies that were spoilt on their way; what a body says is not true for it. A frame that
// does not pass closes the channel.
//
// Errors: invalid (the peer broke the protocol; the channel is closed), unavailable (closed by
// either end, or the peer is gone), exhausted (send: no room before the deadline; nothing was sent
// and the channel is as before). A frame that was complete before the peer went is still received.
//
// Threads: one may send while another receives; close() and closed() are for any thread. Nothing
// may be under way when a channel is destroyed. Deadlines are points of the steady clock; one that
// has passed means "only what can be done at once".
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/buffer.h"
#include "base/result.h"
#include "worker/body_sum.h"
#include "worker/wire.h"

namespace tessera::worker {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
inline Deadline after(Clock::duration duration) {
  return Clock::now() + duration;
}

// How long a receiver stays awake after NEAR, at most: as long as the longest that is left of a
// step when the next one is told of it, the head. A core that sleeps is slow to wake, and slow for
// a while after.
inline constexpr auto kAnnouncedSpin = std::chrono::milliseconds(5);

// Whether a receiver awaits the next frame awake. What a NEAR is about comes after it, so that one
// counts for each job or result, and who sends others keeps nobody awake.
class Announcement {
 public:
  void saw(Op op) {
    announced_ = op == Op::near && may_;
    if (op == Op::near) may_ = false;
    if (op == Op::compute_experts || op == Op::forward_layers || op == Op::result) may_ = true;
  }
  bool pending() const { return announced_; }
  void used() { announced_ = false; }

 private:
  bool may_ = true;
  bool announced_ = false;  // the last frame was NEAR
};

// A received frame. Its memory only grows, so a Frame that is used again allocates nothing.
class Frame {
 public:
  FrameHeader header;

  std::span<const std::byte> body() const { return {storage_.data(), size_}; }
  // Room for a body, not preserving what was there.
  Result<std::span<std::byte>> prepare(std::uint64_t bytes);
  // Takes the other's memory where it is more; no body lasts.
  void take_room(Frame& other) {
    if (storage_.size() < other.storage_.size()) std::swap(storage_, other.storage_);
    size_ = other.size_ = 0;
  }

 private:
  AlignedBuffer storage_;
  std::size_t size_ = 0;
};

// Who takes the frames that come while send() waits for room.
class FrameTaker {
 public:
  virtual ~FrameTaker() = default;
  // Where the next frame may go; null: nothing is taken now.
  virtual Frame* place() = 0;
  // It is there.
  virtual void take() = 0;
};

class Channel {
 public:
  virtual ~Channel() = default;

  // The body is the parts one after another; the header's body_bytes and body_sum are set from
  // them.
  Status send(FrameHeader header, Parts parts, Deadline deadline) {
    seal(header, parts);
    return put(header, parts, deadline);
  }
  Status send(const FrameHeader& header, std::span<const std::byte> body, Deadline deadline) {
    return send(header, Parts(&body, 1), deadline);
  }
  Status send(const FrameHeader& header, Deadline deadline) {
    return send(header, Parts{}, deadline);
  }

  // The same, but a frame that has begun counts as sent: what the connection takes no more of, by
  // the deadline or for as long as `stuck`, the channel keeps, and it goes out before anything else
  // with flush() or the next frame.
  Status hand_over(FrameHeader header, Parts parts, Deadline deadline, Clock::duration stuck) {
    seal(header, parts);
    return put_or_keep(header, parts, deadline, stuck);
  }
  // Whether nothing of such a frame is left. has_rest() is for any thread.
  virtual Result<bool> flush(Deadline deadline) {
    (void)deadline;
    return true;
  }
  virtual bool has_rest() const { return false; }

  // The same as send() where several threads send: one after the other. Then all must use this.
  Status send_in_turn(const FrameHeader& header, std::span<const std::byte> body,
                      Deadline deadline) {
    const std::lock_guard lock(turn_);
    return send(header, Parts(&body, 1), deadline);
  }

  // False when no whole frame came before the deadline.
  Result<bool> receive(Frame& frame, Deadline deadline) {
    return checked(get(frame, deadline), frame);
  }

  // What a kind of channel does for these: it carries frames as they are, with headers that tell of
  // their bodies, right or wrong.
  virtual Status put(const FrameHeader& header, Parts parts, Deadline deadline) = 0;
  virtual Status put_or_keep(const FrameHeader& header, Parts parts, Deadline deadline,
                             Clock::duration stuck) {
    (void)stuck;
    return put(header, parts, deadline);
  }
  virtual Result<bool> get(Frame& frame, Deadline deadline) = 0;

  // Bytes that have come of a frame which is not whole yet. For the receiving thread.
  virtual std::size_t begun() const { return 0; }

  // Whether a frame that a credit allows has room at once, whatever the peer does.
  virtual bool reserves_room() const = 0;
  // Where not, two ends that both send more than the connection holds would wait for each other,
  // unless one of them calls this: while its send() waits for room, frames that come go to `taker`.
  // One thread may use that end at a time.
  virtual void take_while_sending(FrameTaker* taker) { (void)taker; }

  // Whoever waits in receive() looks at once whether the peer is still there; any thread.
  virtual void look_around() {}

  // Ends the connection for both ends; idempotent.
  virtual void close() = 0;
  virtual bool closed() const = 0;
  // For poll() with no events: hung up when the peer is gone. Not to be read.
  virtual int descriptor() const = 0;
  virtual std::string describe() const = 0;  // for messages: "unix stream", "shared rings", ...

  // What may be received from now on; called by the receiving thread.
  void set_limits(const WireLimits& limits) { limits_ = limits; }
  const WireLimits& limits() const { return limits_; }

 protected:
  static void seal(FrameHeader& header, Parts parts);
  // `came`: that a frame did. Closes the channel where its body is not what the header says.
  Result<bool> checked(Result<bool> came, const Frame& frame);

 private:
  WireLimits limits_;
  std::mutex turn_;
};

}  // namespace tessera::worker
