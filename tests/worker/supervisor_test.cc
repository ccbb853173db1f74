// Supervised workers under faults.
#include "worker/supervisor.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "base/log.h"
#include "worker/scale_handler.h"
#include "worker/stream_channel.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

int entries(const char* folder) {
  DIR* open = ::opendir(folder);
  int count = 0;
  while (const dirent* entry = ::readdir(open)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(open);
  return count;
}

std::string children() {
  std::string all, one;
  DIR* open = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(open)) {
    std::ifstream file(fmt::format("/proc/self/task/{}/children", entry->d_name));
    while (file >> one) all += one + " ";
  }
  ::closedir(open);
  return all;
}

long resident_kib() {
  std::ifstream file("/proc/self/statm");
  long pages = 0;
  file >> pages >> pages;
  return pages * 4;
}

class Supervised : public testing::Test {
 protected:
  SupervisorOptions options() {
    SupervisorOptions made{.name = "test", .hello = scale_hello()};
    // Wide enough for a machine that is busy with other things.
    made.lifecycle = {.heartbeat = 5ms,
                      .suspect_after = 10,
                      .dead_after = 300ms,
                      .backoff_first = 1ms,
                      .backoff_most = 4ms};
    made.start_limit = 20s;
    made.stop = {.bye = 500ms, .term = 500ms, .kill = 10s};
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
    const Deadline limit = after(20s);
    while (!done()) {
      if (Clock::now() > limit) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }
  bool becomes_healthy(const Supervisor& supervisor) {
    return eventually([&] { return supervisor.session() != nullptr; });
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

  std::uint64_t starts() {
    return metrics_.counter("tessera_worker_starts_total", "", {{"worker", "test"}}).value();
  }
  std::uint64_t suspicions() {
    return metrics_.counter("tessera_worker_suspicions_total", "", {{"worker", "test"}}).value();
  }

  MetricsRegistry metrics_;
  std::atomic<pid_t> pid_{0};
};

bool computes(Session& session) {
  const ScaleJob job;
  const auto parts = job.parts();
  const Result<Ticket> ticket = session.submit(job.header, Parts(parts));
  if (!ticket) return false;
  JobReply reply;
  const Result<bool> done = session.wait(*ticket, reply, after(10s));
  return done.ok() && *done && all_nines(reply.body);
}

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
  EXPECT_EQ(children(), "");
}

TEST_F(Supervised, KilledWorkersComeBack) {
  Supervisor supervisor(options(), counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  const std::shared_ptr<Session> held = supervisor.session();
  const pid_t first = pid_;
  ::kill(first, SIGKILL);
  ASSERT_TRUE(eventually([&] { return pid_ != first && supervisor.session() != nullptr; }));
  EXPECT_FALSE(computes(*held)) << "a request that still holds it gets an error";
  EXPECT_TRUE(computes(*supervisor.session()));
  EXPECT_EQ(deaths("exited"), 1u);
}

TEST_F(Supervised, AStoppedWorkerIsSuspectThenDead) {
  Supervisor supervisor(options(), counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  const pid_t first = pid_;
  ::kill(first, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return pid_ != first && supervisor.session() != nullptr; }));
  EXPECT_GE(suspicions(), 1u);
  EXPECT_EQ(deaths("hung"), 1u);
}

// A worker that is slow again and again is told of once; the counter has the rest.
TEST_F(Supervised, OneLineForManySuspicions) {
  SupervisorOptions patient = options();
  patient.lifecycle.dead_after = 20s;
  Supervisor supervisor(patient, counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    ::kill(pid_, SIGSTOP);
    EXPECT_TRUE(eventually([&] { return supervisor.state() == WorkerState::suspect; }));
    ::kill(pid_, SIGCONT);
    EXPECT_TRUE(eventually([&] { return supervisor.state() == WorkerState::healthy; }));
  }
  supervisor.stop();
  const std::string log = testing::internal::GetCapturedStderr();
  const auto lines = [&](const std::string& text) {
    int count = 0;
    for (std::size_t at = log.find(text); at != log.npos; at = log.find(text, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(lines("healthy -> suspect"), 1) << log;
  EXPECT_EQ(lines("suspect -> healthy"), 1) << log;
  EXPECT_GE(suspicions(), 3u);
}

TEST_F(Supervised, AWorkerThatDiesTooOftenIsNotStartedAgain) {
  SupervisorOptions capped = options();
  capped.lifecycle.most_restarts = 3;
  capped.lifecycle.dead_after = 20s;  // each death is one of this test
  Supervisor supervisor(capped, counting("serve"), metrics_);
  for (int death = 0; death < 4; ++death) {
    ASSERT_TRUE(becomes_healthy(supervisor)) << death;
    EXPECT_EQ(supervisor.absence(), Absence::none);
    ::kill(pid_, SIGKILL);
    ASSERT_TRUE(eventually([&] { return supervisor.session() == nullptr; }));
    if (death < 3) {
      EXPECT_NE(supervisor.absence(), Absence::failed);
    }
  }
  ASSERT_TRUE(eventually([&] { return supervisor.state() == WorkerState::failed; }));
  EXPECT_EQ(supervisor.absence(), Absence::failed);
  EXPECT_EQ(supervisor.away(), "away (failed, 3 restarts): signal 9 (Killed)");
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(children(), "");
  const auto begin = Clock::now();
  supervisor.stop();
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST_F(Supervised, AJobThatNeverEndsKillsItsWorker) {
  SupervisorOptions short_jobs = options();
  short_jobs.lifecycle.job_limit = 50ms;
  Supervisor supervisor(short_jobs, counting("serve"), metrics_);
  ASSERT_TRUE(becomes_healthy(supervisor));
  const pid_t first = pid_;
  const std::shared_ptr<Session> session = supervisor.session();
  ::kill(first, SIGSTOP);
  const ScaleJob job;
  const auto parts = job.parts();
  const Result<Ticket> ticket = session->submit(job.header, Parts(parts));
  ASSERT_TRUE(ticket.ok());
  JobReply reply;
  EXPECT_FALSE(*session->wait(*ticket, reply, after(5ms)));
  session->abandon(*ticket);
  ASSERT_TRUE(eventually([&] { return pid_ != first && supervisor.session() != nullptr; }));
  EXPECT_EQ(deaths("hung"), 1u);
}

TEST_F(Supervised, RefusalsAreCounted) {
  for (const auto& [mode, reason] :
       {std::pair{"other_model", "model"}, {"newer", "version"}, {"no_memory", "memory"}}) {
    Supervisor supervisor(options(), counting(mode), metrics_);
    EXPECT_TRUE(eventually([&, why = reason] { return refusals(why) >= 2; })) << mode;
    EXPECT_EQ(supervisor.session(), nullptr);
    const bool memory = std::string(reason) == "memory";
    EXPECT_EQ(supervisor.absence(), memory ? Absence::lost : Absence::mismatch);
  }
  EXPECT_GE(deaths("refused"), 6u);
}

// Also where it says so before the handshake.
TEST_F(Supervised, ARefusalOfTheConnectionIsOneToo) {
  const std::string path = testing::TempDir() + fmt::format("tessera_busy_{}", ::getpid());
  Listener listener = *Listener::open(*Address::parse("unix:" + path));
  std::thread worker([&] {
    for (;;) {
      Result<Fd> client = listener.take(after(20s));
      if (!client || !*client) return;
      const auto channel = *StreamChannel::adopt(*std::move(client), "busy");
      Frame attach;
      Fd memory;
      (void)channel->receive_with_descriptor(attach, memory, after(5s));
      (void)channel->send({.op = Op::refuse}, encode(Refuse{.reason = RefuseReason::busy}),
                          after(5s));
    }
  });
  {
    Supervisor supervisor(options(), connect_starter(listener.address(), {}), metrics_);
    EXPECT_TRUE(eventually([&] { return refusals("busy") >= 2; }));
    EXPECT_EQ(supervisor.absence(), Absence::lost) << "it passes";
    EXPECT_NE(supervisor.away().value_or("").find("busy: another server is connected to it"),
              std::string::npos)
        << supervisor.away().value_or("not away");
  }
  EXPECT_GE(deaths("refused"), 2u);
  EXPECT_EQ(deaths("start_failed"), 0u);
  listener.stop();
  worker.join();
}

TEST_F(Supervised, WorkersThatFailToStart) {
  for (const char* mode : {"exit", "silent"}) {
    SupervisorOptions quick = options();
    quick.start_limit = 100ms;
    const std::uint64_t before = deaths("start_failed");
    Supervisor supervisor(quick, counting(mode), metrics_);
    EXPECT_TRUE(eventually([&] { return deaths("start_failed") >= before + 2; })) << mode;
  }
  const std::uint64_t before = deaths("start_failed");
  Supervisor supervisor(options(), spawn_starter({.binary = "/nowhere/at/all"}, {}), metrics_);
  const Result<std::shared_ptr<Session>> session = supervisor.wait(2);
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code, ErrorCode::unavailable);
  EXPECT_NE(session.error().message.find("/nowhere/at/all"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return deaths("start_failed") >= before + 2; }));
}

// While it lives this process may open so many more descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t free) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (Fd one; (one = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));)
      taken_.push_back(std::move(one));
    few.rlim_cur += free;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<Fd> taken_;
};

// Whichever the one is that there is none for.
TEST(Starting, WithoutEnoughDescriptorsIsAnErrorThatLeavesNothing) {
  const int before = entries("/proc/self/fd");
  std::set<std::string> errors;
  Result<StartedWorker> started = Error::make(ErrorCode::io, "not tried");
  for (rlim_t free = 0; free < 20 && !started; ++free) {
    {
      const FewDescriptors few(free);
      Interrupter interrupter;
      started = spawn_starter({.binary = FAKE_WORKER, .arguments = {"worker", "serve"}}, {})(
          after(20s), interrupter);
    }
    if (started) break;
    const std::string& text = started.error().message;
    errors.insert(text);
    EXPECT_NE(text.find(": Too many open files; raise the limit"), std::string::npos) << text;
    EXPECT_EQ(children(), "") << text;
    EXPECT_EQ(entries("/proc/self/fd"), before) << text;
  }
  EXPECT_TRUE(started) << started.error().message;
  const auto seen = [&](const std::string& part) {
    return std::any_of(errors.begin(), errors.end(), [&](const std::string& text) {
      return text.find(part) != std::string::npos;
    });
  };
  EXPECT_TRUE(seen("starting a worker: socket pair: ")) << fmt::to_string(fmt::join(errors, "\n"));
  EXPECT_TRUE(seen("the log of worker: ")) << fmt::to_string(fmt::join(errors, "\n"));
}

TEST_F(Supervised, AWorkerComesOnceThereAreDescriptors) {
  auto few = std::make_unique<FewDescriptors>(4);
  Supervisor supervisor(options(), counting("serve"), metrics_);
  EXPECT_TRUE(eventually([&] { return deaths("start_failed") >= 2; }));
  EXPECT_NE(supervisor.away().value_or("").find("Too many open files"), std::string::npos)
      << supervisor.away().value_or("not away");
  few.reset();
  ASSERT_TRUE(becomes_healthy(supervisor));
  EXPECT_TRUE(computes(*supervisor.session()));
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
  EXPECT_LT(Clock::now() - start, 5s);
  EXPECT_TRUE(eventually([&] { return deaths("exited") >= 1; }));
}

TEST_F(Supervised, StopDoesNotWaitForALongStart) {
  Supervisor supervisor(options(), counting("rude"), metrics_);  // attaches, then says nothing
  ASSERT_TRUE(eventually([&] { return pid_ != 0; }));
  std::this_thread::sleep_for(20ms);
  const Deadline start = Clock::now();
  supervisor.stop();
  EXPECT_LT(Clock::now() - start, 10s);
  EXPECT_EQ(children(), "");
}

TEST_F(Supervised, ManyEndInTheTimeOfOne) {
  SupervisorOptions patient = options();
  patient.lifecycle.dead_after = 20s * TESSERA_TIME_SCALE;
  patient.stop = {.bye = 500ms, .term = 500ms, .kill = 10s};
  std::vector<std::unique_ptr<Supervisor>> supervisors;
  for (int i = 0; i < 4; ++i) {
    supervisors.push_back(std::make_unique<Supervisor>(patient, counting("serve"), metrics_));
    ASSERT_TRUE(becomes_healthy(*supervisors.back()));
    ::kill(pid_, SIGSTOP);
  }
  const std::uint64_t started = starts();
  const Deadline start = Clock::now();
  for (const auto& supervisor : supervisors) supervisor->begin_stop();
  EXPECT_LT(Clock::now() - start, 500ms) << "waits for nobody";
  for (const auto& supervisor : supervisors) supervisor->stop();
  EXPECT_LT(Clock::now() - start, 2s * TESSERA_TIME_SCALE);
  EXPECT_EQ(starts(), started);
  EXPECT_EQ(children(), "");
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
    EXPECT_EQ(children(), "") << mode;
  }
  Interrupter interrupter;
  interrupter.interrupt();
  const Result<StartedWorker> started = spawn_starter(
      {.binary = FAKE_WORKER, .arguments = {"worker", "serve"}}, {})(after(20s), interrupter);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::cancelled);
  EXPECT_EQ(children(), "");
}

// Somebody listens, takes the connection, and says nothing.
TEST_F(Supervised, StopDoesNotWaitForASilentAddress) {
  const std::string path = testing::TempDir() + fmt::format("tessera_silent_{}", ::getpid());
  const Listener silent = *Listener::open(*Address::parse("unix:" + path));
  Supervisor supervisor(options(), connect_starter(silent.address(), {}), metrics_);
  std::this_thread::sleep_for(50ms);
  const Deadline start = Clock::now();
  supervisor.stop();
  EXPECT_LT(Clock::now() - start, 5s);
}

TEST_F(Supervised, AWorkerAtAnAddress) {
  const std::string path = testing::TempDir() + fmt::format("tessera_worker_{}", ::getpid());
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
        ::kill(victim, SIGKILL);
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
        descriptors = entries("/proc/self/fd");
        threads = entries("/proc/self/task");
        memory = resident_kib();
      }
    }
    ASSERT_TRUE(becomes_healthy(supervisor));
    EXPECT_EQ(entries("/proc/self/fd"), descriptors);
    EXPECT_LE(entries("/proc/self/task"), threads);
    // A sanitizer keeps memory of its own for every thread that there was.
    if (TESSERA_TIME_SCALE == 1) {
      EXPECT_LT(resident_kib(), memory + 4096);
    }
  }
  EXPECT_EQ(children(), "");
  set_log_level(LogLevel::info);
}

}  // namespace
}  // namespace tessera::worker
