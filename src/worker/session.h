// Session: the client's end of a worker after the handshake: jobs under credits, and heartbeats.
//
//   TESSERA_ASSIGN(const Ticket ticket, session->submit(header, parts));   // never waits for
//   credit TESSERA_ASSIGN(const bool done, session->wait(ticket, reply, after(50ms))); if (!done)
//   session->abandon(ticket);                                   // compute it elsewhere
//
// Threads: submit, wait and abandon are for one thread (the one that runs the model). Others may
// call beat, health and close at any time; beat never keeps the first thread waiting for long,
// since it only takes frames that are there. Everything is answered in the order that the worker
// likes; replies are matched by sequence, and a reply that nobody waits for is dropped.
//
// Errors: exhausted (no credit left or no room), unavailable (the session is over), invalid (the
// worker broke the protocol, and the session is over).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "worker/handshake.h"
#include "worker/transport.h"

namespace tessera::worker {

struct Ticket {
  std::size_t slot = 0;
  std::uint64_t sequence = 0;
};

// RESULT, or an ERROR for this job alone.
struct JobReply {
  FrameHeader header;
  std::optional<ErrorReply> error;
  std::span<const std::byte> body;  // until the ticket's slot is used again by submit
};

class Session {
 public:
  Session(std::unique_ptr<Channel> channel, const Hello& hello, const HelloAck& ack);

  const HelloAck& agreed() const { return ack_; }
  const WireLimits& limits() const { return channel_->limits(); }

  // header.sequence and version are set here.
  Result<Ticket> submit(FrameHeader header, Parts parts);
  // False when the reply has not come before the deadline. Ends the ticket when true.
  Result<bool> wait(const Ticket& ticket, JobReply& reply, Deadline deadline);
  // Tells the worker not to bother; the credit comes back with its answer.
  void abandon(const Ticket& ticket);

  // Sends PING and takes what has come. An Error when the session is over.
  Status beat();

  struct Health {
    Deadline heard;                      // when the last frame came
    std::optional<Deadline> oldest_job;  // submitted and not answered
    int abandoned = 0;                   // of these, given up by the client
  };
  Health health() const;

  Status say_bye();
  void close() { channel_->close(); }
  bool closed() const { return channel_->closed(); }
  int descriptor() const { return channel_->descriptor(); }

 private:
  struct Slot {
    enum class State { free, waiting, abandoned, answered } state = State::free;
    std::uint64_t sequence = 0;
    Deadline submitted;
    Frame reply;
  };

  Status send(FrameHeader header, Parts parts, Deadline deadline);
  void deliver(Frame& frame);

  std::unique_ptr<Channel> channel_;
  HelloAck ack_;
  std::mutex send_mutex_;
  std::mutex receive_mutex_;
  mutable std::mutex slots_mutex_;
  std::vector<Slot> slots_;
  std::uint64_t next_sequence_ = 1;
  Frame incoming_;
  std::atomic<Deadline::rep> heard_;
};

}  // namespace tessera::worker
