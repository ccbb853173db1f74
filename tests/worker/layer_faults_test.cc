// Workers that hold layers, killed, stopped, slow or wrong at any moment, in prefill and decode, on
// both transports: forward() fails in time with a typed error, nothing else breaks, and after
// restart() a new sequence gets the answers of the plain run.
//
// TESSERA_TEST_KILLS=1000 makes the last test as long as that.
#include <gtest/gtest.h>

#include <csignal>
#include <random>
#include <thread>

#include "base/environment.h"
#include "base/log.h"
#include "tests/golden_data.h"
#include "tests/worker/layer_topology.h"
#include "tests/worker/process_counts.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;
using enum worker::TransportChoice;
using Clock = std::chrono::steady_clock;

constexpr auto kJobLimit = 400ms;
constexpr auto kSoon = 10s;  // on a machine that is busy with other things

const std::string& model_path() {
  static const std::string path = TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf";
  return path;
}

std::span<const std::int32_t> prompt() {
  static const GoldenData golden =
      GoldenData::load(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe.bin");
  return golden.ints("p300_ids");
}

const std::vector<float>& plain_logits() {
  static const std::vector<float> logits = [] {
    ModelRunner plain(model_path(), {.threads = 1});
    return plain.logits(prompt(), 64);
  }();
  return logits;
}

bool eventually(const std::function<bool()>& done) {
  for (const auto end = Clock::now() + 20s; !done(); std::this_thread::sleep_for(2ms))
    if (Clock::now() > end) return false;
  return true;
}

struct Rig {
  explicit Rig(worker::TransportChoice transport, std::chrono::milliseconds job_limit = kJobLimit) {
    workers.transport = transport;
    workers.job_limit = job_limit;
    workers.lifecycle.heartbeat = 10ms;
    workers.lifecycle.suspect_after = 50;
    workers.lifecycle.backoff_first = 1ms;
    workers.lifecycle.backoff_most = 20ms;
  }
  void load(const std::string& topology = "LW") {
    runner = std::make_unique<ModelRunner>(model_path(),
                                           on_topology(model_path(), topology, {}, workers));
    ASSERT_TRUE(runner->ready());
    sequence = runner->start(400);
  }
  int pid() const { return child_processes().empty() ? 0 : child_processes().front(); }

  // One step of the sequence.
  Status step(int tokens, bool logits) {
    const auto from = prompt().subspan(static_cast<std::size_t>(sequence.position) % 200);
    sequence.state.extend(tokens);
    const SequenceRows rows{.n_rows = tokens,
                            .first_position = sequence.position,
                            .slot = sequence.state.slot(),
                            .pages = sequence.state.page_tables()};
    const std::int32_t last = tokens - 1;
    const BatchView batch{.tokens = from.first(static_cast<std::size_t>(tokens)),
                          .sequences = {&rows, 1},
                          .logit_rows = {&last, logits ? std::size_t{1} : 0}};
    Status status = runner->pipeline().forward(batch);
    sequence.position += tokens;
    return status;
  }
  Status run(bool prefill) {
    if (prefill) return step(150, true);
    TESSERA_TRY(step(5, true));
    for (int i = 0; i < 20; ++i) TESSERA_TRY(step(1, true));
    return {};
  }
  // Drops the sequence and waits until the worker is there again; then all is as at the start.
  void expect_recovery() {
    ASSERT_TRUE(eventually([&] { return runner->pipeline().restart().ok(); }));
    sequence = {};
    EXPECT_TRUE(runner->logits(prompt(), 64) == plain_logits());
    sequence = runner->start(400);
  }

  LayerWorkers workers;
  std::unique_ptr<ModelRunner> runner;
  ModelRunner::Sequence sequence;
};

void expect_lost(const Status& status, Clock::time_point begin) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::unavailable) << status.error().message;
  EXPECT_LT(Clock::now() - begin, kJobLimit + kSoon);
}

class LayerFaults : public ::testing::TestWithParam<std::tuple<bool, worker::TransportChoice>> {
 protected:
  bool prefill() const { return std::get<0>(GetParam()); }
  worker::TransportChoice transport() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Phases, LayerFaults,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(shared, stream)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "prefill" : "decode") +
                                  (std::get<1>(info.param) == shared ? "_shared" : "_stream");
                         });

// It is stopped first, so that it is killed in the middle of a job.
TEST_P(LayerFaults, Killed) {
  Rig rig(transport(), 10s);
  rig.load();
  ASSERT_TRUE(rig.run(false));
  ::kill(rig.pid(), SIGSTOP);
  std::thread killer([pid = rig.pid()] {
    std::this_thread::sleep_for(30ms);
    ::kill(pid, SIGKILL);
  });
  const auto begin = Clock::now();
  expect_lost(rig.run(prefill()), begin);
  killer.join();
  EXPECT_FALSE(rig.runner->pipeline().forward({}).ok()) << "until restart()";
  rig.expect_recovery();
}

TEST_P(LayerFaults, Stopped) {
  Rig rig(transport());
  rig.load();
  ASSERT_TRUE(rig.run(false));
  ::kill(rig.pid(), SIGSTOP);
  const auto begin = Clock::now();
  expect_lost(rig.run(prefill()), begin);
  rig.expect_recovery();
}

TEST_P(LayerFaults, SlowIsNoFault) {
  Rig rig(transport(), 20s);
  rig.load();
  ASSERT_TRUE(rig.run(false));
  ::kill(rig.pid(), SIGSTOP);
  std::thread waker([pid = rig.pid()] {
    std::this_thread::sleep_for(200ms);
    ::kill(pid, SIGCONT);
  });
  EXPECT_TRUE(rig.run(prefill()));
  waker.join();
  rig.sequence = {};
  EXPECT_TRUE(rig.runner->logits(prompt(), 64) == plain_logits());
}

TEST_P(LayerFaults, Wrong) {
  for (const char* how : {"absurd", "short", "refusal", "nothing", "exit"}) {
    SCOPED_TRACE(how);
    Rig rig(transport());
    rig.workers.binary = FAKE_WORKER;
    rig.workers.words = {"worker", std::string("jobs_") + how};
    rig.load("LWL");
    const auto begin = Clock::now();
    expect_lost(rig.run(prefill()), begin);
    const std::string page = rig.workers.metrics.render();
    EXPECT_NE(page.find("tessera_worker_lost_total"), std::string::npos);
  }
}

// Several workers, one of which dies: the others keep what they loaded and go on.
TEST(LayerFault, OneOfSeveral) {
  Rig rig(shared);
  rig.load("WLWL");
  ASSERT_TRUE(rig.run(true));
  const std::vector<int> before = child_processes();
  ASSERT_EQ(before.size(), 2u);
  ::kill(before.front(), SIGKILL);
  expect_lost(rig.run(true), Clock::now());
  rig.expect_recovery();
  const std::vector<int> after = child_processes();
  EXPECT_NE(std::find(after.begin(), after.end(), before.back()), after.end());
}

// A worker that died while nothing ran costs no request.
TEST(LayerFault, WhileIdle) {
  Rig rig(shared);
  rig.load();
  ::kill(rig.pid(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return !rig.runner->pipeline().ready().ok(); }));
  rig.expect_recovery();
  EXPECT_TRUE(rig.run(false));
}

TEST(LayerFault, StopsInTimeWithAHungWorker) {
  const auto begin = Clock::now();
  {
    Rig rig(shared);
    rig.load();
    ASSERT_TRUE(rig.step(100, false));
    ::kill(rig.pid(), SIGSTOP);
    (void)rig.step(100, false);
    rig.runner->pipeline().stop();
    rig.runner->pipeline().stop();
  }
  EXPECT_LT(Clock::now() - begin, 20s);
  EXPECT_TRUE(child_processes().empty());
}

// Kills at random moments; nothing is left of those that died.
TEST(LayerFault, ManyKillsLeaveNothingBehind) {
  const auto wanted = environment_variable("TESSERA_TEST_KILLS");
  const int kills = wanted ? std::stoi(*wanted) : 15;
  set_log_level(LogLevel::error);
  std::mt19937 random(7);
  std::uniform_int_distribution<int> moment(0, 4000);  // microseconds
  const ProcessCounts before;
  {
    Rig rig(shared, 10s);
    rig.load();
    ASSERT_TRUE(rig.run(true));
    rig.expect_recovery();
    ProcessCounts warm;
    for (int i = 0; i < kills; ++i) {
      std::thread killer([pid = rig.pid(), delay = moment(random)] {
        std::this_thread::sleep_for(std::chrono::microseconds(delay));
        ::kill(pid, SIGKILL);
      });
      Status status;
      while (status) {
        if (rig.sequence.position + 40 > 380) {
          rig.sequence = {};
          rig.sequence = rig.runner->start(400);
        }
        status = rig.step(i % 2 == 0 ? 1 : 40, i % 3 != 0);
      }
      killer.join();
      EXPECT_EQ(status.error().code, ErrorCode::unavailable) << status.error().message;
      ASSERT_TRUE(eventually([&] { return rig.runner->pipeline().restart().ok(); })) << i;
      rig.sequence = {};
      if (i % 10 == 0) {
        EXPECT_TRUE(rig.runner->logits(prompt(), 64) == plain_logits()) << i;
      }
      rig.sequence = rig.runner->start(400);
    }
    const ProcessCounts after;
    EXPECT_EQ(after.descriptors, warm.descriptors);
    EXPECT_EQ(after.children, warm.children);
    EXPECT_EQ(after.segments, warm.segments);
    EXPECT_LT(after.memory_kib, warm.memory_kib + 20'000);
    std::printf(
        "%d kills: %d descriptors, %zu children, %d segments, %ld KiB; before %d, %zu, %d, "
        "%ld\n",
        kills, after.descriptors, after.children, after.segments, after.memory_kib,
        warm.descriptors, warm.children, warm.segments, warm.memory_kib);
  }
  set_log_level(LogLevel::info);
  const ProcessCounts end;
  EXPECT_EQ(end.descriptors, before.descriptors);
  EXPECT_EQ(end.children, 0u);
  EXPECT_EQ(end.segments, 0);
}

}  // namespace
}  // namespace tessera::testing
