// StreamChannel: frames over a stream socket (unix or tcp).
//
// Reading keeps its place in a frame across deadlines, so a slow peer costs time and nothing else.
// It sleeps until something comes; after NEAR it asks again and again, for kAnnouncedSpin at most.
// Writing cannot be taken back: when the deadline passes in the middle of a frame that is sent, the
// channel is closed (unavailable); of one that is handed over the rest is kept.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "worker/fd.h"
#include "worker/socket_io.h"
#include "worker/transport.h"

namespace tessera::worker {

class StreamChannel final : public Channel {
 public:
  // `socket` is connected; it is made non-blocking.
  static Result<std::unique_ptr<StreamChannel>> adopt(Fd socket, std::string description);

  Status put(const FrameHeader& header, Parts parts, Deadline deadline) override;
  Status put_or_keep(const FrameHeader& header, Parts parts, Deadline deadline,
                     Clock::duration stuck) override;
  Result<bool> flush(Deadline deadline) override;
  bool has_rest() const override { return has_rest_.load(std::memory_order_relaxed); }
  Result<bool> get(Frame& frame, Deadline deadline) override;
  void close() override;
  std::size_t begun() const override { return header_have_ + (in_body_ ? body_have_ : 0); }
  bool reserves_room() const override { return false; }
  void take_while_sending(FrameTaker* taker) override { taker_ = taker; }
  bool closed() const override { return closed_.load(std::memory_order_relaxed); }
  int descriptor() const override { return socket_.get(); }
  std::string describe() const override { return description_; }

  // During set-up: the next frame may bring a descriptor (SCM_RIGHTS) along.
  Result<bool> receive_with_descriptor(Frame& frame, Fd& descriptor, Deadline deadline);
  Status send_with_descriptor(FrameHeader header, std::span<const std::byte> body, int descriptor,
                              Deadline deadline);
  // Gives the socket up, for another kind of channel to use. No frame may be half read.
  Fd release() { return std::move(socket_); }

 private:
  StreamChannel(Fd socket, std::string description)
      : socket_(std::move(socket)), description_(std::move(description)) {}

  // True when all of `to` is there; false at the deadline.
  Result<bool> fill(std::span<std::byte> to, std::size_t& have, Deadline deadline,
                    Fd* descriptor = nullptr);
  Readiness wait_for_more(Deadline deadline);
  Result<bool> receive_frame(Frame& frame, Deadline deadline, Fd* descriptor);
  // How a frame goes out: `pieces` are what is left of it when the deadline passes, or the socket
  // took nothing for as long as `stuck`.
  struct Outgoing {
    std::array<std::byte, kHeaderBytes> header;
    std::array<iovec, 9> storage;
    std::span<iovec> pieces;
    bool started = false;
  };
  static Status lay_out(const FrameHeader& header, Parts parts, Outgoing& out);
  Result<bool> push(Outgoing& out, Deadline deadline, Clock::duration stuck);
  // Until the socket has room or, where allowed, a frame to take has come, which it takes; false at
  // the deadline.
  Result<bool> wait_for_room(Deadline deadline);
  Error no_room(Op op) const;
  Error fail(Error error);

  Fd socket_;
  std::string description_;
  std::atomic<bool> closed_{false};
  // The frame that is being read: here and not in the caller's, which may change between calls.
  Frame partial_;
  std::span<std::byte> partial_body_;
  std::array<std::byte, kHeaderBytes> raw_header_{};
  std::size_t header_have_ = 0;
  std::size_t body_have_ = 0;
  bool in_body_ = false;
  Announcement announcement_;
  FrameTaker* taker_ = nullptr;
  // Of the last frame that was handed over; for the sending thread.
  std::vector<std::byte> rest_;
  std::size_t rest_sent_ = 0;
  std::atomic<bool> has_rest_{false};
};

}  // namespace tessera::worker
