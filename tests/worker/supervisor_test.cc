// Supervised workers under faults: who is missed, who comes back.
#include "base/log.h"
#include "tests/worker/supervisor_rig.h"

namespace tessera::worker {
namespace {

TEST_F(Supervised, ServesAndStops) {
  Supervisor supervisor(options(), counting("serve"), metrics_);
  const Result<std::shared_ptr<Session>> session = supervisor.wait(1);
  ASSERT_TRUE(session) << session.error().message;
  EXPECT_TRUE(computes(**session));
  supervisor.stop();
  supervisor.stop();
  EXPECT_FALSE(supervisor.wait(1));
  EXPECT_EQ(supervisor.state(), WorkerState::stopped);
  EXPECT_EQ(supervisor.session(), nullptr);
  EXPECT_TRUE(child_processes().empty());
}

TEST_F(Supervised, KilledWorkersComeBack) {
  Supervisor supervisor(options(), counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  const std::shared_ptr<Session> held = supervisor.session();
  const pid_t first = pid_;
  send_signal(first, SIGKILL);
  ASSERT_TRUE(has_another(supervisor, first));
  EXPECT_EQ(starts("first"), 1u);
  EXPECT_EQ(starts("exited"), 1u);
  EXPECT_FALSE(computes(*held)) << "a request that still holds it gets an error";
  EXPECT_TRUE(computes(*supervisor.session()));
  EXPECT_EQ(deaths("exited"), 1u);
}

// Until it was seen to be suspect: the machine may stand still until it is dead.
TEST_F(Supervised, AStoppedWorkerIsSuspectThenDead) {
  SupervisorOptions hasty = options();
  hasty.lifecycle.dead_after = 300ms;
  Supervisor supervisor(hasty, counting("serve"), metrics_);
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(becomes_healthy(supervisor));
    const pid_t victim = pid_;
    send_signal(victim, SIGSTOP);
    EXPECT_TRUE(has_another(supervisor, victim));
    return suspicions("silent") > 0;
  }));
  EXPECT_EQ(starts("first"), 1u);
  EXPECT_GE(starts("hung"), 1u);
  EXPECT_GE(deaths("hung"), 1u);
}

// A worker that is slow again and again is told of once; the counter has the rest.
TEST_F(Supervised, OneLineForManySuspicions) {
  ::testing::internal::CaptureStderr();
  const Deadline begin = Clock::now();
  Supervisor supervisor(options(), counting("serve"), metrics_);
  EXPECT_TRUE(becomes_healthy(supervisor));
  for (int i = 0; i < 3; ++i) {
    send_signal(pid_, SIGSTOP);
    EXPECT_TRUE(eventually([&] { return supervisor.state() == WorkerState::suspect; }));
    send_signal(pid_, SIGCONT);
    EXPECT_TRUE(eventually([&] { return supervisor.state() == WorkerState::healthy; }));
  }
  supervisor.stop();
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto lines = [&](const std::string& text) {
    int count = 0;
    for (std::size_t at = log.find(text); at != log.npos; at = log.find(text, at + 1)) ++count;
    return count;
  };
  if (Clock::now() - begin < 10s) {  // after which there may be another one
    EXPECT_EQ(lines("healthy -> suspect"), 1) << log;
    EXPECT_EQ(lines("suspect -> healthy"), 1) << log;
  }
  EXPECT_GE(suspicions("silent"), 3u);
}

// Who comes back as another program is told of, once.
TEST_F(Supervised, AnUpdatedWorkerIsToldOf) {
  std::atomic<bool> updated{false};
  const Starter before = counting("serve"), then = counting("updated");
  const auto changes = [&] {
    return metrics_.counter("tessera_worker_build_changes_total", "", {{"worker", "test"}}).value();
  };
  ::testing::internal::CaptureStderr();
  Supervisor supervisor(
      options(),
      [&](Deadline deadline, Interrupter& interrupter) {
        return (updated ? then : before)(deadline, interrupter);
      },
      metrics_);
  for (pid_t victim = 0, start = 0; start < 4; ++start) {
    EXPECT_TRUE(has_another(supervisor, victim)) << start;
    EXPECT_EQ(changes(), start < 2 ? 0u : 1u);
    updated = start > 0;
    victim = pid_;
    send_signal(victim, SIGKILL);
  }
  supervisor.stop();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("test computes with portable on cpu, version newer now"), std::string::npos)
      << log;
}

// Who is to compute with certain kernels is refused with others, until it comes back with those.
TEST_F(Supervised, AWorkerWithOtherKernelsIsRefused) {
  std::atomic<bool> other{false};
  const Starter right = counting("updated"), wrong = counting("serve");
  SupervisorOptions strict = options();
  strict.isa = 1;
  ::testing::internal::CaptureStderr();
  Supervisor supervisor(
      strict,
      [&](Deadline deadline, Interrupter& interrupter) {
        return (other ? wrong : right)(deadline, interrupter);
      },
      metrics_);
  EXPECT_TRUE(becomes_healthy(supervisor));
  other = true;
  send_signal(pid_, SIGKILL);
  EXPECT_TRUE(eventually([&] { return refusals("isa") >= 2; }));
  EXPECT_EQ(supervisor.session(), nullptr);
  EXPECT_TRUE(eventually([&] { return supervisor.absence() == Absence::mismatch; }));
  other = false;
  EXPECT_TRUE(becomes_healthy(supervisor));
  EXPECT_EQ(supervisor.absence(), Absence::none);
  supervisor.stop();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      log.find("it computes with kernels that it does not name on cpu, which may choose other "
               "tokens; start it with --cpu-isa portable too"),
      std::string::npos)
      << log;
}

TEST_F(Supervised, AWorkerThatDiesTooOftenIsNotStartedAgain) {
  SupervisorOptions capped = options();
  capped.lifecycle.most_restarts = 3;
  Supervisor supervisor(capped, counting("serve"), metrics_);
  for (pid_t victim = 0, death = 0; death < 4; ++death) {
    ASSERT_TRUE(has_another(supervisor, victim)) << death;
    EXPECT_EQ(supervisor.absence(), Absence::none);
    victim = pid_;
    send_signal(victim, SIGKILL);
    if (death < 3) {
      EXPECT_NE(supervisor.absence(), Absence::failed);
    }
  }
  ASSERT_TRUE(eventually([&] { return supervisor.state() == WorkerState::failed; }));
  EXPECT_EQ(supervisor.absence(), Absence::failed);
  EXPECT_EQ(supervisor.away(), "away (failed, 3 restarts): signal 9 (Killed)");
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(child_processes().empty());
  supervisor.stop();
}

TEST_F(Supervised, AJobThatNeverEndsKillsItsWorker) {
  SupervisorOptions short_jobs = options();
  short_jobs.lifecycle.job_limit = 50ms;
  Supervisor supervisor(short_jobs, counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  const pid_t first = pid_;
  const std::shared_ptr<Session> session = supervisor.session();
  send_signal(first, SIGSTOP);
  const ScaleJob job;
  const auto parts = job.parts();
  const Result<Ticket> ticket = session->submit(job.header, Parts(parts));
  ASSERT_TRUE(ticket.ok());
  JobReply reply;
  const Result<bool> done = session->wait(*ticket, reply, after(5ms));
  EXPECT_FALSE(done.ok() && *done);
  session->abandon(*ticket);
  ASSERT_TRUE(has_another(supervisor, first));
  EXPECT_EQ(deaths("hung"), 1u);
}

// Silence is none here, and so all that can be said against it is the job.
TEST_F(Supervised, AWorkerIsLateWithAJobThatWasGivenUp) {
  SupervisorOptions patient = options();
  patient.lifecycle.suspect_after = 100'000;
  Supervisor supervisor(patient, counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  const std::shared_ptr<Session> session = supervisor.session();
  send_signal(pid_, SIGSTOP);
  const ScaleJob job;
  const auto parts = job.parts();
  const Deadline begin = Clock::now();
  const Result<Ticket> ticket = session->submit(job.header, Parts(parts));
  ASSERT_TRUE(ticket.ok());
  std::this_thread::sleep_for(20ms);
  const WorkerState state = supervisor.state();
  if (Clock::now() - begin < 1s) {  // after which any job is late
    EXPECT_EQ(state, WorkerState::healthy) << "it is waited for";
  }
  session->abandon(*ticket);
  ASSERT_TRUE(eventually([&] { return supervisor.state() == WorkerState::suspect; }));
  EXPECT_EQ(suspicions("late"), 1u);
  send_signal(pid_, SIGCONT);
  ASSERT_TRUE(eventually([&] { return supervisor.state() == WorkerState::healthy; }));
  EXPECT_EQ(suspicions("late"), 1u);
  EXPECT_EQ(suspicions("silent"), 0u);
  EXPECT_TRUE(computes(*session));
}

TEST_F(Supervised, AWorkerThatBreaksTheProtocol) {
  Supervisor supervisor(options(), counting("corrupt"), metrics_);
  EXPECT_TRUE(eventually([&] { return deaths("protocol") >= 2; }));
}

TEST_F(Supervised, AWorkerThatDiesInAJob) {
  Supervisor supervisor(options(), counting("crash"), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  const Deadline start = Clock::now();
  EXPECT_FALSE(computes(*supervisor.session()));
  EXPECT_LT(Clock::now() - start, 50s) << "not when the wait is over";
  EXPECT_TRUE(eventually([&] { return deaths("exited") >= 1; }));
}

TEST_F(Supervised, AWorkerAtAnAddress) {
  const std::string path = ::testing::TempDir() + fmt::format("tessera_worker_{}", ::getpid());
  const auto listening = *WorkerProcess::spawn(
      {.binary = FAKE_WORKER, .arguments = {"worker", "listen", "unix:" + path, ""}});
  Supervisor supervisor(options(), connect_starter(*Address::parse("unix:" + path), {}), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  EXPECT_TRUE(computes(*supervisor.session()));
  supervisor.session()->close();
  ASSERT_TRUE(eventually([&] { return deaths("disconnected") >= 1; }));
  ASSERT_TRUE(becomes_healthy(supervisor));
  EXPECT_TRUE(computes(*supervisor.session()));
  supervisor.stop();
}

TEST_F(Supervised, TwoHundredKillsLeaveNothingBehind) {
  set_log_level(LogLevel::error);
  int descriptors = 0, threads = 0;
  long memory = 0;
  {
    Supervisor supervisor(options(), counting("serve"), metrics_);
    for (int cycle = 0; cycle < 220; ++cycle) {
      ASSERT_TRUE(becomes_healthy(supervisor)) << cycle;
      std::shared_ptr<Session> session = supervisor.session();
      const pid_t victim = pid_;
      // Killed while idle, and while jobs go back and forth.
      std::thread killer([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(cycle % 7 * 100));
        send_signal(victim, SIGKILL);
      });
      if (cycle % 2 == 0) {
        while (session != nullptr && computes(*session)) {
        }
      }
      killer.join();
      session.reset();
      ASSERT_TRUE(eventually([&] { return pid_ != victim; })) << cycle;
      if (cycle == 20) {
        ASSERT_TRUE(becomes_healthy(supervisor));
        descriptors = open_descriptors();
        threads = running_threads();
        memory = resident_kib();
      }
    }
    ASSERT_TRUE(becomes_healthy(supervisor));
    EXPECT_EQ(open_descriptors(), descriptors);
    // The system lists a thread for a moment after it was joined.
    EXPECT_TRUE(eventually([&] { return running_threads() <= threads; }));
    // A sanitizer keeps memory of its own for every thread that there was.
    if (TESSERA_TIME_SCALE == 1) {
      EXPECT_LT(resident_kib(), memory + 4096);
    }
  }
  EXPECT_TRUE(child_processes().empty());
  set_log_level(LogLevel::info);
}

}  // namespace
}  // namespace tessera::worker
