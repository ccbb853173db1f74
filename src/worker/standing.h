// Standing: how one supervised worker stands, for everybody but its supervisor: who may be given
// jobs, and what is said of one that may not.
//
//   standing.publish({.before = before, .now = now, .session = live, .reason = "handshake done"});
//   if (std::shared_ptr<Session> session = standing.session()) session->submit(...);
//
// The supervisor's thread publishes; everything else may be called by any thread, and waits for
// nothing unless it says so.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "pipeline/absence.h"
#include "worker/lifecycle.h"
#include "worker/session.h"

namespace tessera::worker {

class Standing {
 public:
  // `most_restarts`: what a worker that has failed was given, as LifecycleOptions has it.
  explicit Standing(int most_restarts) : most_restarts_(most_restarts) {}

  // As Supervisor's members of these names say.
  std::shared_ptr<Session> session() const;
  Result<std::shared_ptr<Session>> wait(int failed_starts) const;
  WorkerState state() const;
  Absence absence() const;
  bool await_failed() const;
  std::optional<std::string> away() const;
  std::optional<std::string> unanswered() const;

  // What the supervisor is asked to do.
  void hurry();
  bool hurries() const;
  void begin_stop();
  bool stopping() const;

  struct News {
    WorkerState before = WorkerState::starting;
    WorkerState now = WorkerState::starting;
    bool failed = false;               // Lifecycle::failed()
    std::shared_ptr<Session> session;  // null: nobody may be given jobs
    std::string reason;
  };
  void publish(const News& news);
  void set_mismatch(bool mismatch);

 private:
  const int most_restarts_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<Session> session_;
  WorkerState state_ = WorkerState::starting;
  std::string failure_;    // why it was last lost; empty once it is back
  int failed_starts_ = 0;  // of all
  bool failed_ = false;    // restarted too often, and not back since
  bool mismatch_ = false;  // last refused for what it is
  bool hurries_ = false;
  bool stopping_ = false;
};

}  // namespace tessera::worker
