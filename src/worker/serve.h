// serve: the loop of a worker over one connection, for every role.
//
// Frames are read one by one; jobs are queued and run in order. Before each job the connection is
// looked at once more, so that CANCEL and PING get past queued jobs; while a job computes nothing
// is read, which is why a client does not expect heartbeats while its jobs are under way. A job
// whose deadline passed in the queue is answered `expired` and not run. Where layers have experts
// away, STATS goes before each result, so that what a job counted comes with it; ROUTED is asked
// for, as it is larger. What a job gets wrong is answered with ERROR and the connection lives; what
// breaks the protocol ends it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "worker/handshake.h"
#include "worker/messages.h"
#include "worker/transport.h"

namespace tessera::worker {

struct JobOutput {
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  WireType type = WireType::f32;
  std::span<const std::byte> body;  // the handler's, until its next run
  std::uint16_t flags = 0;
};

using Near = std::function<void()>;

class JobHandler {
 public:
  virtual ~JobHandler() = default;
  virtual Result<Prepared> prepare(const Hello& hello, const HelloAck& ack) = 0;
  // May call `near`, once, when little of the job is left. Codes: invalid (malformed), not_found
  // (not owned), anything else (internal).
  virtual Result<JobOutput> run(const FrameHeader& header, std::span<const std::byte> body,
                                const WireLimits& limits, const Near& near) = 0;
  // Of the experts of its layers, since prepare().
  virtual ExpertCounts expert_counts() const { return {}; }
  // The body of ROUTED for a layer: what of it was chosen since this was last called, or prepare()
  // was. Where HELLO asked for no such counts or not for the layer, not_found.
  virtual Status routed(std::uint16_t layer, std::vector<std::byte>& body) {
    (void)body;
    return Error::make(ErrorCode::not_found, "nothing of layer {} is counted", layer);
  }
  // Whether nothing can be computed any more, by this handler and in this process.
  virtual bool lost() const { return false; }
};

enum class ServeEnd { bye, peer_gone, silent, lost };

// Frames in memory besides those that credits are for: the one that comes and the one that is read.
inline constexpr int kFramesBesideCredits = 2;

// Handshake, then jobs until the client leaves, or is silent for as long as the offer says: one
// that is idle sends heartbeats, and bytes of a long frame are signs of life too. An Error when the
// client was refused or broke the protocol. `lost`: the handler is, and has told the client so.
Result<ServeEnd> serve(Channel& channel, const WorkerOffer& offer, JobHandler& handler,
                       Stats& stats);

}  // namespace tessera::worker
