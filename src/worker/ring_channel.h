// RingChannel: frames through shared memory, for two processes of one host.
//
// A receiver spins for a while and then sleeps on a word of the shared memory, where a sender wakes
// it: the cheapest sleep that two processes can have. The socket only tells that the peer is gone:
// one that closes wakes this end, for one that was killed a sleeper looks now and then, and when
// look_around() says so. How long to spin follows what came of it: `max_spin` while frames end the
// spin, nearly nothing on an idle connection or where both ends share a core; now and then
// `max_spin` is tried again. After NEAR (Announcement) it spins until that frame comes, for
// kAnnouncedSpin at most.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "worker/fd.h"
#include "worker/ring.h"
#include "worker/ring_memory.h"
#include "worker/transport.h"

namespace tessera::worker {

enum class RingEnd { client, worker };

struct SpinOptions {
  std::chrono::nanoseconds max_spin = std::chrono::microseconds(50);
};

class RingChannel final : public Channel {
 public:
  // `socket` is connected to the peer that maps the same memory, and non-blocking.
  RingChannel(Fd socket, RingMemory memory, RingEnd end, const SpinOptions& spin);

  Status put(const FrameHeader& header, Parts parts, Deadline deadline) override;
  Result<bool> get(Frame& frame, Deadline deadline) override;
  bool reserves_room() const override { return true; }
  void look_around() override { receiver_.rouse(); }
  void close() override;
  bool closed() const override { return closed_.load(std::memory_order_relaxed); }
  int descriptor() const override { return socket_.get(); }
  std::string describe() const override { return "shared rings"; }

 private:
  Result<bool> take(Frame& frame);
  Result<bool> peek(Frame& frame);  // without waiting, but seeing the end of the peer
  Result<bool> spin(Frame& frame, Deadline deadline);
  Result<bool> await_announced(Frame& frame, Deadline deadline);
  Result<bool> sleep(Frame& frame, Deadline deadline);
  Error fail(Error error);
  Error gone();

  Fd socket_;
  RingMemory memory_;
  RingSender sender_;
  RingReceiver receiver_;
  std::chrono::nanoseconds max_spin_;
  std::chrono::nanoseconds spin_;
  std::uint32_t waits_ = 0;
  Announcement announcement_;
  std::atomic<bool> closed_{false};
};

}  // namespace tessera::worker
