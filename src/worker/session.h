// Session: the client's end of a worker after the handshake: jobs under credits, and heartbeats.
//
//   TESSERA_ASSIGN(const Ticket ticket, session->submit(header, parts));  // waits for no credit
//   TESSERA_ASSIGN(const bool done, session->wait(ticket, reply, after(50ms)));
//   if (!done) session->abandon(ticket);  // compute it elsewhere
//
// Threads: any, each with tickets of its own. Of those that wait one receives for all. beat never
// keeps them waiting for long, since it only takes frames that are there. Everything is answered in
// the order that the worker likes; replies are matched by sequence. The reply to an abandoned job
// is dropped but for its times (take_late); one that nothing asked for breaks the protocol, so that
// no worker can keep this end busy with frames.
//
// Which experts a worker's layers chose it is asked for a layer at a time, in the place of
// heartbeats: a step brings no bytes for it, none are asked for while nothing is computed, and a
// worker that dies takes no more along than it counted in as many heartbeats as it has layers.
//
// Errors: exhausted (no credit left or no room), unavailable (the session is over), invalid (the
// worker broke the protocol, and the session is over).
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "experts/pair_pace.h"
#include "worker/handshake.h"
#include "worker/told_experts.h"
#include "worker/told_routing.h"
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
  std::span<const std::byte> body;  // of `frame`
  Frame frame;
};

// What a worker says that a job took, where that can be: not longer than the job was away.
inline std::chrono::microseconds at_most_since(Deadline submitted, std::uint32_t told_us) {
  return std::min(std::chrono::microseconds(told_us),
                  std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - submitted));
}

class Session {
 public:
  // `counts` gets what the worker counts of its layers' routing, where `hello` asks for that; it
  // must outlive the session.
  Session(std::unique_ptr<Channel> channel, const Hello& hello, const HelloAck& ack,
          RoutingCounts* counts = nullptr);

  const Hello& asked() const { return hello_; }
  const HelloAck& agreed() const { return ack_; }
  const WireLimits& limits() const { return channel_->limits(); }

  // How long a socket may take for a job: in all, and for any byte of it. What it did not take then
  // goes out behind submit(), whenever somebody waits for an answer.
  struct SendTime {
    std::chrono::milliseconds all{1000};
    std::chrono::milliseconds stuck{10};
  };
  // header.sequence and version are set here.
  Result<Ticket> submit(FrameHeader header, Parts parts) {
    return submit(header, parts, SendTime());
  }
  Result<Ticket> submit(FrameHeader header, Parts parts, const SendTime& time);
  // The next job comes within milliseconds: the worker awaits it awake.
  void announce();
  // False when the reply has not come before the deadline. Ends the ticket when true. `near` is
  // called, once at most, when the worker says that the reply is near; it may not use the session.
  Result<bool> wait(const Ticket& ticket, JobReply& reply, Deadline deadline,
                    const std::function<void()>& near = {});
  // Tells the worker not to bother; the credit comes back with its answer. Waits for nothing: what
  // cannot go out at once does as the rest of a job does.
  void abandon(const Ticket& ticket);
  // An abandoned job that was computed all the same, since the last call.
  struct Late {
    std::uint32_t items = 0;  // of the job
    std::chrono::microseconds compute{0};
  };
  std::optional<Late> take_late();

  // Takes what has come and asks for a sign of life, unless that is unanswered. An Error when the
  // session is over: `invalid` where the worker broke the protocol, whichever call saw that.
  Status beat();
  // What a worker of layers counted of experts away since the last call, in all jobs that were
  // answered: it tells of each before its result. Any thread.
  ExpertCounts take_experts();
  // Asks for all of the routing that was not told yet, until the deadline. For an idle worker that
  // is about to be left.
  void collect_routing(Deadline deadline);

  struct Health {
    Deadline heard;                      // when the last frame came
    std::optional<Deadline> oldest_job;  // submitted and not answered
    int abandoned = 0;                   // of these, given up by the client
    bool late = false;                   // the oldest takes much longer than others of its rows did
  };
  Health health() const;

  // Closes the session where a job is being sent: nothing is waited for.
  Status say_bye();
  void close() { channel_->close(); }
  // The same for a worker that is not worth keeping; the first reason is kept for the supervisor,
  // and whether it was that no answer came.
  struct GivenUp {
    std::string why{};  // empty: nobody did
    bool late = false;
  };
  void give_up(const GivenUp& reason);
  GivenUp given_up() const;
  bool closed() const { return channel_->closed(); }
  bool reserves_room() const { return channel_->reserves_room(); }
  int descriptor() const { return channel_->descriptor(); }

 private:
  struct Slot {
    enum class State { free, waiting, abandoned, answered } state = State::free;
    std::uint64_t sequence = 0;
    bool untold = false;  // abandoned, and its CANCEL is to go out
    bool near = false;    // the worker said so
    std::uint32_t rows = 0;
    std::uint32_t items = 0;
    bool counted = false;  // its STATS came
    Deadline submitted;
    Frame reply;
  };

  bool push_rest();
  bool tell_abandoned();
  FrameHeader next_beat();
  void forget_beat();
  bool answers_beat(const FrameHeader& header);
  Status look_and_ask();
  Status deliver(Frame& frame);
  Status take_counts(const Frame& frame);
  Status take_routing(const Frame& frame);
  Slot* under_way(std::uint64_t sequence);
  void take_room();
  // Frames that an honest worker can have sent and this end not taken.
  std::size_t most_waiting() const { return (counts_experts_ ? 3 : 2) * slots_.size() + 1; }
  Result<bool> receive_one(std::unique_lock<std::mutex>& lock, Deadline deadline);

  std::unique_ptr<Channel> channel_;
  const Hello hello_;
  HelloAck ack_;
  std::mutex send_mutex_;
  mutable std::mutex slots_mutex_;
  std::condition_variable received_;
  bool receiving_ = false;  // a thread is in receive(), with incoming_
  std::vector<Slot> slots_;
  bool untold_ = false;  // of a slot, perhaps
  std::uint64_t next_sequence_ = 1;
  const bool counts_experts_;
  std::optional<FrameHeader> beat_out_;  // PING or ROUTED, not answered; with slots_mutex_
  ToldExperts told_experts_;
  ExpertCounts experts_;  // not taken yet
  ToldRouting told_routing_;
  std::optional<Late> late_;
  PairPace pace_;  // of a job's rows, from submit() to the answer
  GivenUp given_up_;
  std::optional<Error> breach_;  // of the protocol, the first one; with slots_mutex_
  Frame incoming_;
  std::atomic<Deadline::rep> heard_;
};

}  // namespace tessera::worker
