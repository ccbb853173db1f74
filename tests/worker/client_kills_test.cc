// Clients of a listening worker, killed at random moments while they connect, send it the model and
// have it compute: it serves the next one, and keeps nothing of those that died: descriptors,
// threads, shared segments, memory. TESSERA_TEST_KILLS=1000 makes each as long as that.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <random>

#include "tests/worker/expert_rig.h"
#include "tests/worker/layer_rig.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;

std::span<const TokenId> short_prompt() {
  return prompt().first(40);
}

// Takes a client's answers; false: it is enough.
using Answered = std::function<bool(const std::vector<float>& logits)>;

// Connects until it is served, and then computes until it is enough.
void be_client_of_layers(const std::string& address, Link link, const Answered& answered) {
  for (;;) {
    LayerRig rig(link);
    rig.workers.addresses = {address};
    rig.options.may_fail = true;
    if (!rig.try_load("W")) continue;
    while (answered(rig.runner->logits(short_prompt(), 8))) {
    }
    return;
  }
}

void be_client_of_experts(const std::string& address, Link link, const Answered& answered) {
  ExpertRig rig;
  rig.link = link;
  rig.address = address;
  rig.may_fail = true;
  ModelRunner runner(model_path(), rig.runner(model_path(), 30.0, 1));
  for (;;) {
    const std::vector<float> logits = runner.logits(short_prompt(), 8);
    // The host computes for a worker that is not there yet.
    if (rig.metrics.worker.calls.value() > 0 && !answered(logits)) return;
  }
}

using BeClient = void (*)(const std::string&, Link, const Answered&);

// A client in a process of its own.
class DoomedClient {
 public:
  DoomedClient(BeClient be_client, const std::string& address, Link link) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    answers_ = worker::Fd(ends[0]);
    const worker::Fd out(ends[1]);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    be_client(address, link, [&](const auto&) { return ::write(out.get(), "", 1) == 1; });
    ::_exit(1);
  }
  ~DoomedClient() {
    send_signal(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool wait_for_an_answer() {
    pollfd answers{answers_.get(), POLLIN, 0};
    char byte;
    if (::poll(&answers, 1, 20'000 * kTimeScale) != 1) return false;
    return ::read(answers_.get(), &byte, 1) == 1;
  }

 private:
  worker::Fd answers_;
  int pid_ = 0;
};

// The thread sanitizer starts one of its own with a process's first thread, which here is a
// client's.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr int kSanitizerThreads = 1;
#else
constexpr int kSanitizerThreads = 0;
#endif
#else
constexpr int kSanitizerThreads = 0;
#endif

class ClientKills : public ::testing::TestWithParam<std::tuple<bool, Link>> {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override {
    worker_.end();
    ::unlink(path_.c_str());
    set_log_level(LogLevel::info);
    EXPECT_TRUE(child_processes().empty());
  }
  bool layers() const { return std::get<0>(GetParam()); }
  Link link() const { return std::get<1>(GetParam()); }
  BeClient be_client() const { return layers() ? be_client_of_layers : be_client_of_experts; }

  // Half of them some time after their start, the others a moment after their first answer.
  void kill_clients(int kills) {
    for (int i = 0; i < kills; ++i) {
      DoomedClient client(be_client(), worker_.address(), link());
      if (i % 2 == 1) {
        ASSERT_TRUE(client.wait_for_an_answer()) << i;
      }
      const int most = i % 2 == 1 ? 4'000 : 40'000;
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::uniform_int_distribution(0, most)(random_)));
    }
  }
  // It serves one that lives.
  void expect_service() {
    int answers = 0;
    be_client()(worker_.address(), link(), [&](const std::vector<float>& logits) {
      EXPECT_TRUE(logits == plain_);
      return ++answers < 3;
    });
  }
  // Of the worker without clients: each has a socket there, and a thread.
  ProcessCounts counts_when_idle() const {
    const int pid = worker_.pid();
    EXPECT_TRUE(eventually([&] {
      return open_sockets(pid) == idle_sockets_ &&
             running_threads(pid) == idle_threads_ + kSanitizerThreads;
    }));
    return ProcessCounts(pid);
  }

  std::string path_ = ::testing::TempDir() + fmt::format("client_kills_{}", ::getpid());
  ListeningProcess worker_{
      TESSERA_PROGRAM,
      {"worker", "--config", "/dev/null", "--threads", "1", "--log-level", "off"},
      "unix:" + path_};
  const std::vector<float> plain_ =
      ModelRunner(model_path(), RunnerOptions{.threads = 1}).logits(short_prompt(), 8);

 private:
  const int idle_sockets_ = open_sockets(worker_.pid());
  const int idle_threads_ = running_threads(worker_.pid());
  std::mt19937 random_{7};
};
INSTANTIATE_TEST_SUITE_P(All, ClientKills,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Link::shared, Link::stream)),
                         [](const auto& info) {
                           return fmt::format("{}_{}",
                                              std::get<0>(info.param) ? "layers" : "experts",
                                              link_name(std::get<1>(info.param)));
                         });

TEST_P(ClientKills, LeaveNothingAtTheWorker) {
  constexpr int kWarm = 20;  // more than may attach at a time
  const int kills = wanted_kills();
  ASSERT_NO_FATAL_FAILURE(kill_clients(kWarm));
  expect_service();
  const ProcessCounts before = counts_when_idle();
  ASSERT_NO_FATAL_FAILURE(kill_clients(kills));
  expect_service();
  const ProcessCounts after = counts_when_idle();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.segments, before.segments);
  // A sanitizer keeps what was freed.
  if (kTimeScale == 1) {
    EXPECT_LT(after.memory_kib, before.memory_kib + 1024);
  }
  std::printf("%d kills: %d descriptors, %d segments, %ld KiB; before %d, %d, %ld\n", kills,
              after.descriptors, after.segments, after.memory_kib, before.descriptors,
              before.segments, before.memory_kib);
}

}  // namespace
}  // namespace tessera::testing
