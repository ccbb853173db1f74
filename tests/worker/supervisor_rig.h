// Supervisors of fake workers, for tests of what happens to them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "tests/send_signal.h"
#include "tests/worker/process_counts.h"
#include "tests/worker/starts.h"
#include "worker/scale_handler.h"
#include "worker/supervisor.h"

namespace tessera::worker {

using namespace std::chrono_literals;
using tessera::testing::child_processes;
using tessera::testing::open_descriptors;
using tessera::testing::resident_kib;
using tessera::testing::running_threads;
using tessera::testing::send_signal;

class Supervised : public ::testing::Test {
 protected:
  SupervisorOptions options() {
    SupervisorOptions made{.name = "test", .hello = scale_hello()};
    // No machine stands still for long enough to make a good worker dead.
    made.lifecycle = {.heartbeat = 5ms,
                      .suspect_after = 10,
                      .dead_after = 10min,
                      .backoff_first = 1ms,
                      .backoff_most = 4ms};
    made.start_limit = 10min;
    made.stop = {.bye = 500ms, .kill = 60s};
    return made;
  }
  // The number of the worker that was started last.
  Starter counting(const std::string& mode) {
    return [this, mode](Deadline deadline, Interrupter& interrupter) {
      Result<StartedWorker> started = spawn_starter(
          {.binary = FAKE_WORKER, .arguments = {"worker", mode}}, {})(deadline, interrupter);
      if (started.ok()) pid_ = started->process->pid();
      return started;
    };
  }
  template <typename Done>
  bool eventually(Done done) {
    const Deadline limit = after(2min);  // against hanging
    while (!done()) {
      if (Clock::now() > limit) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }
  bool becomes_healthy(const Supervisor& supervisor) {
    return eventually([&] { return supervisor.session() != nullptr; });
  }
  // Another worker than that one, which is lost or about to be.
  bool has_another(const Supervisor& supervisor, pid_t victim) {
    return eventually([&] { return pid_ != victim && supervisor.session() != nullptr; });
  }
  std::uint64_t deaths(const char* reason) {
    return metrics_
        .counter("tessera_worker_deaths_total", "", {{"worker", "test"}, {"reason", reason}})
        .value();
  }
  std::uint64_t refusals(const char* reason) {
    return metrics_
        .counter("tessera_worker_refusals_total", "", {{"worker", "test"}, {"reason", reason}})
        .value();
  }

  std::uint64_t starts() { return all_starts(metrics_, "test"); }
  std::uint64_t starts(const char* reason) { return starts_for(metrics_, "test", reason); }
  std::uint64_t suspicions(const char* reason) {
    return metrics_
        .counter("tessera_worker_suspicions_total", "", {{"worker", "test"}, {"reason", reason}})
        .value();
  }

  MetricsRegistry metrics_;
  std::atomic<pid_t> pid_{0};
};

inline bool computes(Session& session) {
  const ScaleJob job;
  const auto parts = job.parts();
  const Result<Ticket> ticket = session.submit(job.header, Parts(parts));
  if (!ticket) return false;
  JobReply reply;
  const Result<bool> done = session.wait(*ticket, reply, after(60s));
  return done.ok() && *done && all_nines(reply.body);
}

}  // namespace tessera::worker
