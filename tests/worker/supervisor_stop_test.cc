// The end of supervised workers: nobody is waited for long, and nothing starts any more.
#include "tests/worker/supervisor_rig.h"

namespace tessera::worker {
namespace {

TEST_F(Supervised, StopDoesNotWaitForALongStart) {
  SupervisorOptions patient = options();
  patient.lifecycle.loading_silence = 10min;
  Supervisor supervisor(patient, counting("rude"), metrics_);  // attaches, then says nothing
  ASSERT_TRUE(eventually([&] { return pid_ != 0; }));
  std::this_thread::sleep_for(20ms);
  const Deadline start = Clock::now();
  supervisor.stop();
  EXPECT_LT(Clock::now() - start, 1min);
  EXPECT_TRUE(child_processes().empty());
}

TEST_F(Supervised, ManyEndInTheTimeOfOne) {
  SupervisorOptions patient = options();
  patient.lifecycle.suspect_after = 1'000'000;
  patient.stop = {.bye = 4s, .kill = 60s};
  const auto one = patient.stop.bye;
  std::vector<std::unique_ptr<Supervisor>> supervisors;
  for (int i = 0; i < 4; ++i) {
    supervisors.push_back(std::make_unique<Supervisor>(patient, counting("serve"), metrics_));
    ASSERT_TRUE(becomes_healthy(*supervisors.back()));
    send_signal(pid_, SIGSTOP);
  }
  const std::uint64_t started = starts();
  const Deadline start = Clock::now();
  for (const auto& supervisor : supervisors) supervisor->begin_stop();
  EXPECT_LT(Clock::now() - start, one) << "waits for nobody";
  for (const auto& supervisor : supervisors) supervisor->stop();
  EXPECT_LT(Clock::now() - start, 4 * one);
  EXPECT_EQ(starts(), started);
  EXPECT_TRUE(child_processes().empty());
}

// It has nothing to finish that anybody still waits for.
TEST_F(Supervised, NoneThatHangsIsWaitedFor) {
  SupervisorOptions patient = options();
  patient.stop.bye = 10min;
  const auto ends_soon = [](Supervisor& supervisor) {
    const Deadline start = Clock::now();
    supervisor.stop();
    EXPECT_LT(Clock::now() - start, 5min);
    EXPECT_TRUE(child_processes().empty());
  };
  Supervisor silent(patient, counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(silent));
  send_signal(pid_, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return silent.state() == WorkerState::suspect; }));
  ends_soon(silent);

  patient.lifecycle.suspect_after = 1'000'000;
  Supervisor busy(patient, counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(busy));
  send_signal(pid_, SIGSTOP);
  const ScaleJob job;
  const auto parts = job.parts();
  ASSERT_TRUE(busy.session()->submit(job.header, Parts(parts)).ok());
  ends_soon(busy);
}

// Whatever it does when the end begins: it waits to start again, or starts.
TEST_F(Supervised, NoneStartsOnceTheEndBegan) {
  for (const char* mode : {"exit", "silent"}) {
    const std::uint64_t before = starts();
    Supervisor supervisor(options(), counting(mode), metrics_);
    ASSERT_TRUE(eventually([&] { return starts() > before; }));
    supervisor.begin_stop();
    EXPECT_TRUE(eventually([&] { return supervisor.state() == WorkerState::stopped; })) << mode;
    const std::uint64_t started = starts();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(starts(), started) << mode;
    supervisor.stop();
    EXPECT_TRUE(child_processes().empty()) << mode;
  }
  Interrupter interrupter;
  interrupter.interrupt();
  const Result<StartedWorker> started = spawn_starter(
      {.binary = FAKE_WORKER, .arguments = {"worker", "serve"}}, {})(after(60s), interrupter);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::cancelled);
  EXPECT_TRUE(child_processes().empty());
}

// Somebody listens, takes the connection, and says nothing.
TEST_F(Supervised, StopDoesNotWaitForASilentAddress) {
  const std::string path = ::testing::TempDir() + fmt::format("tessera_silent_{}", ::getpid());
  const Listener silent = *Listener::open(*Address::parse("unix:" + path));
  Supervisor supervisor(options(), connect_starter(silent.address(), {}), metrics_);
  std::this_thread::sleep_for(50ms);
  const Deadline start = Clock::now();
  supervisor.stop();
  EXPECT_LT(Clock::now() - start, 9s) << "attaching is given up after ten";
}

}  // namespace
}  // namespace tessera::worker
