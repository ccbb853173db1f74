// Supervised workers that refuse, or cannot be started.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <set>

#include "tests/worker/supervisor_rig.h"
#include "worker/stream_channel.h"

namespace tessera::worker {
namespace {

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
  const std::string path = ::testing::TempDir() + fmt::format("tessera_busy_{}", ::getpid());
  Listener listener = *Listener::open(*Address::parse("unix:" + path));
  std::thread worker([&] {
    for (;;) {
      Result<Fd> client = listener.take(after(60s));
      if (!client || !*client) return;
      const auto channel = *StreamChannel::adopt(*std::move(client), "busy");
      Frame attach;
      Fd memory;
      (void)channel->receive_with_descriptor(attach, memory, after(60s));
      (void)channel->send({.op = Op::refuse}, encode(Refuse{.reason = RefuseReason::busy}),
                          after(60s));
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
  const int before = open_descriptors();
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
    EXPECT_TRUE(child_processes().empty()) << text;
    EXPECT_EQ(open_descriptors(), before) << text;
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

}  // namespace
}  // namespace tessera::worker
