// Lifecycle: the states of a supervised worker, as a pure function of events and time.
//
//     Starting --started--> Healthy <--frames--> Suspect --too long--> Dead
//        |                     |                    |                   |
//        +----failed, refused--+------- lost -------+--> Dead --buried--> Backoff --time-->
//        Starting
//
// A worker that was restarted too often has Failed instead: one that this process starts stays so,
// one that somebody else may start again is looked for as in Backoff.
//
// A worker is expected to answer heartbeats while it has no job; with jobs under way it may be
// silent, and is held to the age of the oldest job instead; but one that was silent when it got
// them has a heartbeat to answer first. Silence counts while somebody looks: a process that stood
// still itself has heard nobody. Suspect costs nothing yet: executors go on and use their fallback
// where a deadline passes. Backoff doubles from `backoff_first` to `backoff_most` and starts again
// after a worker has lived for `settled`.
//
// No clock and no thread in here: every call says what time it is.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "worker/handshake.h"
#include "worker/session.h"
#include "worker/transport.h"

namespace tessera::worker {

enum class WorkerState { starting, healthy, suspect, dead, backoff, stopped, failed };
const char* worker_state_name(WorkerState state);

enum class DeathReason {
  start_failed,  // not spawned, not connected, or no handshake in time
  refused,
  exited,        // its process ended
  disconnected,  // its connection ended
  protocol,      // it broke the protocol
  hung,          // no heartbeat, or a job far past any deadline
};
const char* death_reason_name(DeathReason reason);

struct LifecycleOptions {
  // Wider than a wake-up of a loaded machine takes, so that load alone makes nobody suspect.
  std::chrono::milliseconds heartbeat{50};
  int suspect_after = 3;                        // heartbeats
  std::chrono::milliseconds dead_after{3000};   // of silence without a job
  std::chrono::milliseconds job_limit{60'000};  // the oldest job's age
  std::chrono::milliseconds loading_silence = kLoadingSilence;
  std::chrono::milliseconds backoff_first{1000};
  std::chrono::milliseconds backoff_most{60'000};
  std::chrono::milliseconds settled{60'000};
  int most_restarts = 0;  // after its first start, within restart_window; 0: any number
  std::chrono::milliseconds restart_window{600'000};
  bool reappears = false;  // somebody else starts it
};
inline constexpr int kMostRestarts = 3;  // of a worker that nothing can stand in for
// Who waits for a job knows first that it is lost: the supervisor has so many times its patience.
inline constexpr int kSupervisorPatience = 3;

class Lifecycle {
 public:
  Lifecycle(const LifecycleOptions& options, Deadline now) : options_(options), since_(now) {}

  WorkerState state() const { return state_; }
  Deadline since() const { return since_; }

  void started(Deadline now);  // starting -> healthy
  void lost(Deadline now);     // any -> dead
  void buried(Deadline now);   // dead -> backoff, failed: process reaped, connection closed
  void stop(Deadline now);     // any -> stopped, for good
  // From now on a worker that is suspect for `dead_after` is given up, whatever its job's age.
  void hurry(Deadline now);

  // Healthy and suspect: judges; a reason when the worker is to be given up, which is for the
  // caller to do (lost). Backoff, failed: to starting when its time is over.
  std::optional<DeathReason> tick(Deadline now, const Session::Health& health);
  void tick(Deadline now);

  // When to look again at the latest.
  Deadline next_look(Deadline now) const;
  std::chrono::milliseconds backoff() const { return backoff_; }
  bool failed() const { return failed_; }  // since it was restarted too often and did not come back

 private:
  void enter(WorkerState state, Deadline now);
  Deadline::duration silence(Deadline now, Deadline heard);

  LifecycleOptions options_;
  WorkerState state_ = WorkerState::starting;
  Deadline since_;
  std::optional<Deadline> alive_since_;
  std::optional<Deadline> hurries_since_;
  Deadline looked_;
  Deadline::duration unwatched_{0};  // since the worker was heard
  std::optional<Deadline> mute_;     // last heard then, when it was silent without a job
  std::chrono::milliseconds backoff_{0};
  bool was_alive_ = false;
  bool failed_ = false;
  std::deque<Deadline> restarts_;  // within the window
};

}  // namespace tessera::worker
