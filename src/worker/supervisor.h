// Supervisor: keeps one worker alive, on its own thread, away from every request.
//
//   Supervisor supervisor(options, spawn_starter(...), metrics);
//   ...
//   if (std::shared_ptr<Session> session = supervisor.session()) session->submit(...);
//   else ...                                                  // compute it here
//
// session() never waits: it is the healthy (or suspect) worker's session, or null. A request that
// holds one while the worker dies gets errors from it and falls back; the session object lives as
// long as somebody holds it.
//
// How the worker is started is a function (worker/starter.h), which stop() cuts short. What others
// are told of it is in worker/standing.h.
//
// Metrics, kept over restarts (label worker): tessera_worker_state (0 starting, 1 healthy, 2
// suspect, 3 dead, 4 backoff, 5 stopped, 6 failed), and with a reason tessera_worker_deaths_total,
// tessera_worker_starts_total (first, or that of the death before), tessera_worker_refusals_total
// (the worker's, or isa), tessera_worker_suspicions_total (silent, late);
// tessera_worker_build_changes_total of workers that came back as another program, or on another
// processor, and were not refused for that; tessera_worker_experts_released of workers of experts
// that may have fewer than they should. Each change of state is logged once, but from healthy
// to suspect and back once in 10 s.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/metrics.h"
#include "pipeline/absence.h"
#include "worker/lifecycle.h"
#include "worker/process.h"
#include "worker/session.h"
#include "worker/standing.h"
#include "worker/starter.h"

namespace tessera::worker {

struct SupervisorOptions {
  std::string name = "worker";
  Hello hello;
  // What is asked for at once of a worker that has no room for what was, by its refusal (memory);
  // nothing: it is refused. Each start begins with `hello`. Absent: nothing else is asked for.
  std::function<std::optional<Hello>(const Hello& asked, const Refuse& refuse)> fewer_experts;
  const gguf::File* model = nullptr;  // for a worker without a file; must outlive the supervisor
  RoutingCounts* counts = nullptr;    // Session's; must outlive it
  std::optional<WorkerBuild> build;   // that it is to have; absent: that of its first start
  std::uint16_t isa = 0;              // as WorkerBuild::isa: another one is refused; 0: none is
  LifecycleOptions lifecycle;
  std::chrono::milliseconds start_limit{600'000};  // spawn, attach, load, handshake
  StopTimes stop;
};

class Supervisor {
 public:
  Supervisor(SupervisorOptions options, Starter starter, MetricsRegistry& metrics);
  // Stops the worker: BYE, SIGKILL.
  ~Supervisor();

  std::shared_ptr<Session> session() const { return standing_.session(); }
  // Waits until there is one; unavailable, and why the worker was lost, once so many starts failed
  // or there is none to come. Any thread.
  Result<std::shared_ptr<Session>> wait(int failed_starts) const {
    return standing_.wait(failed_starts);
  }
  WorkerState state() const { return standing_.state(); }
  Absence absence() const { return standing_.absence(); }  // any thread
  // Waits until that is `failed`; false once the supervisor is stopped. Any thread.
  bool await_failed() const { return standing_.await_failed(); }
  // Nothing while the worker can be given jobs, otherwise what it does instead and why it was last
  // lost: "away (backoff): signal 9 (Killed)". Any thread.
  std::optional<std::string> away() const { return standing_.away(); }
  // Of a worker that is not away and whose oldest job takes much longer than such jobs did, or that
  // is silent: "not answering: a job is 3.1 s old", "not answering: silent for 1.4 s". Any thread.
  std::optional<std::string> unanswered() const { return standing_.unanswered(); }
  // From now on a worker that does not answer is given up soon (Lifecycle::hurry), as the program
  // is to end. Idempotent, any thread.
  void hurry() { standing_.hurry(); }
  // Ends the worker and the supervision without waiting for it: no worker is started from now on.
  // Whoever has several calls it of all before it waits for one. Idempotent, any thread.
  void begin_stop();
  // The same, and waits until both have ended. A spawned worker that is suspect, still loads, or
  // has a job has nothing to finish and no time for it.
  void stop();

 private:
  void run();
  void step();
  void start_worker();
  std::optional<Refuse> start_with(const Hello& hello, Deadline deadline);
  void tell_released(const Hello& hello);
  void refused(const Refuse& refuse);
  void refuse(const Error& reason);
  void compare_build(const WorkerBuild& now);
  void watch();
  void end_worker(bool by_itself);
  bool may_leave_by_itself() const;
  void bury();
  void pause(Deadline until);
  void count(const char* name, const char* help, const char* reason);
  void lose(DeathReason reason, const std::string& detail);
  bool is_worth_a_line(WorkerState before, WorkerState now);
  void publish(WorkerState before, const std::string& reason);

  SupervisorOptions options_;
  Starter starter_;
  MetricsRegistry& metrics_;
  Gauge& state_gauge_;
  Fd wake_;                  // eventfd: stop() was called
  Interrupter interrupter_;  // of a start
  Standing standing_;

  Lifecycle lifecycle_;  // the supervisor's thread only, as is the process
  std::unique_ptr<WorkerProcess> process_;
  std::shared_ptr<Session> live_;
  std::optional<DeathReason> last_death_;
  std::optional<WorkerBuild> build_;         // of its last start, or that it is to have
  std::optional<Deadline> suspect_told_at_;  // by a line
  bool told_suspect_ = false;                // the suspicion that is or was last

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace tessera::worker
