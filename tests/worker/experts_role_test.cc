// A model whose routed experts are computed in worker processes gives the answers of the plain run:
// for every family, any share of residents, one worker or two, every payload, both transports; and
// whatever happens to a worker at any moment, with the host stepping in.
#include <gtest/gtest.h>

#include <csignal>
#include <random>
#include <thread>

#include "base/environment.h"
#include "base/log.h"
#include "tests/golden_data.h"
#include "tests/model_runner.h"
#include "tests/worker/process_counts.h"
#include "worker/remote_experts.h"

namespace tessera::testing {
namespace {

using namespace std::chrono_literals;
using enum worker::TransportChoice;
using Clock = std::chrono::steady_clock;

const char* const kModels[] = {"qwen35moe", "laguna", "gemma4moe"};

std::string file(const std::string& name, const char* ending) {
  return std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + ending;
}

bool eventually(const std::function<bool()>& done) {
  for (const auto end = Clock::now() + 20s; !done(); std::this_thread::sleep_for(2ms))
    if (Clock::now() > end) return false;
  return true;
}

// Workers of a runner's experts.
struct ExpertRig {
  MetricsRegistry registry;
  ExpertMetrics metrics{registry};
  ExpertOptions options;
  worker::TransportChoice transport = automatic;
  std::string binary = TESSERA_PROGRAM;
  std::string mode;  // of a worker that is none
  std::chrono::milliseconds backoff{1};
  std::vector<std::unique_ptr<worker::ExpertConnection>> connections;

  worker::WorkerSite site(int id, const std::string& path) const {
    worker::WorkerSite made{.name = fmt::format("worker:{}", id),
                            .role = worker::Role::experts,
                            .transport = transport};
    std::vector<std::string> words = {"worker"};
    if (!mode.empty()) words.push_back(mode);
    for (const char* word :
         {path.c_str(), "--config", "/dev/null", "--threads", "1", "--log-level", "warn"})
      words.push_back(word);
    made.spawn =
        worker::SpawnOptions{.binary = binary, .arguments = words, .log_prefix = made.name};
    made.job_limit = 2s;
    made.lifecycle.heartbeat = 10ms;
    made.lifecycle.suspect_after = 50;
    made.lifecycle.backoff_first = backoff;
    made.lifecycle.backoff_most = 20 * backoff;
    return made;
  }

  RunnerOptions runner(const std::string& path, double resident, int workers) {
    RunnerOptions made{.threads = 1, .expert_resident = resident, .expert_workers = workers};
    made.device.experts.options = options;
    made.device.experts.metrics = &metrics;
    made.device.experts.workers = [this, path, workers](const ShardLayout& layout) {
      const Result<Model> model = Model::open(path);
      EXPECT_TRUE(model);
      std::vector<LayerExperts> experts(model->spec().layers.size());
      std::copy(layout.experts.begin(), layout.experts.end(), experts.begin() + layout.first_layer);
      std::vector<std::unique_ptr<ExpertExecutor>> executors;
      for (int id = 0; id < workers; ++id) {
        auto made = worker::ExpertConnection::create(
            site(id, path),
            {.id = id, .experts = experts, .max_rows = layout.max_rows, .payload = options.payload},
            *model, registry);
        EXPECT_TRUE(made) << made.error().message;
        const Status ready = (*made)->wait_ready();
        EXPECT_TRUE(ready) << ready.error().message;
        executors.push_back((*made)->executor());
        connections.push_back(*std::move(made));
      }
      return executors;
    };
    return made;
  }
  double fallbacks() const {
    double sum = 0;
    std::istringstream page(registry.render());
    for (std::string line; std::getline(page, line);)
      if (line.starts_with("tessera_moe_fallback_total{"))
        sum += std::stod(line.substr(line.rfind(' ')));
    return sum;
  }
};

TokenId best_of(std::span<const float> row) {
  return static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Of the log-probabilities of each row, the rows in rising order of it.
std::vector<double> row_differences(std::span<const float> got, std::span<const float> expected,
                                    std::size_t vocab) {
  std::vector<double> rows;
  for (std::size_t row = 0; row * vocab < expected.size(); ++row) {
    const std::vector<double> a = log_softmax(got.subspan(row * vocab, vocab));
    const std::vector<double> b = log_softmax(expected.subspan(row * vocab, vocab));
    rows.push_back(0.0);
    for (std::size_t i = 0; i < vocab; ++i)
      rows.back() = std::max(rows.back(), std::abs(a[i] - b[i]));
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

class WorkerExperts : public ::testing::TestWithParam<const char*> {
 protected:
  std::string model() const { return file(GetParam(), "-bf16.gguf"); }
  GoldenData answers() const { return GoldenData::load(file(GetParam(), ".bin")); }
};
INSTANTIATE_TEST_SUITE_P(Models, WorkerExperts, ::testing::ValuesIn(kModels),
                         [](const auto& info) { return info.param; });

TEST_P(WorkerExperts, AnyShareOfResidentsAndOneWorkerOrTwo) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(120);
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const auto vocab = static_cast<std::size_t>(plain.spec().n_vocab);
  const std::vector<float> whole = plain.logits(ids, 512);
  for (const double resident : {100.0, 60.0, 10.0, 0.0}) {
    for (const int workers : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} % resident, {} workers", resident, workers));
      ExpertRig rig;
      ModelRunner runner(model(), rig.runner(model(), resident, workers));
      ASSERT_TRUE(runner.ready());
      const std::vector<float> got = runner.logits(ids, 512);
      EXPECT_LT(row_differences(got, whole, vocab).back(), 1e-4);
      EXPECT_TRUE(runner.logits(ids, 7) == got);
      EXPECT_EQ(rig.fallbacks(), 0);
      EXPECT_EQ(rig.metrics.worker.pairs.value() > 0, resident < 100.0);
      for (std::size_t row = 0; row < ids.size(); ++row) {
        const std::span<const float> a(got), b(whole);
        EXPECT_EQ(best_of(a.subspan(row * vocab, vocab)), best_of(b.subspan(row * vocab, vocab)));
      }
    }
  }
}

TEST_P(WorkerExperts, PayloadsTransportsAndModes) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(64);
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const auto vocab = static_cast<std::size_t>(plain.spec().n_vocab);
  const std::vector<float> whole = plain.logits(ids, 512);
  for (const ExpertPayload payload :
       {ExpertPayload::f32, ExpertPayload::f16, ExpertPayload::bf16}) {
    std::vector<float> first;
    for (const auto transport : {shared, stream}) {
      for (const ExpertMode mode : {ExpertMode::batched, ExpertMode::stream}) {
        ExpertRig rig;
        rig.options = {.mode = mode, .payload = payload};
        rig.transport = transport;
        ModelRunner runner(model(), rig.runner(model(), 30.0, 1));
        ASSERT_TRUE(runner.ready());
        const std::vector<float> got = runner.logits(ids, 512);
        const std::vector<double> rows = row_differences(got, whole, vocab);
        // bf16 keeps 8 bits of a number: a row whose choice of an expert was near a tie may take
        // another one, and is far off then.
        if (payload == ExpertPayload::bf16) {
          EXPECT_LT(rows[rows.size() / 2], 5e-2);
        } else {
          EXPECT_LT(rows.back(), payload == ExpertPayload::f32 ? 1e-4 : 2e-2);
        }
        if (first.empty()) first = got;
        EXPECT_TRUE(got == first) << "the same bits on any transport in any mode";
        EXPECT_EQ(rig.fallbacks(), 0);
      }
    }
  }
}

// --- Faults ---

enum class Fault { kill, stop, slow };

using FaultCase = std::tuple<Fault, bool, worker::TransportChoice>;  // bool: prefill

std::string case_name(const ::testing::TestParamInfo<FaultCase>& info) {
  const Fault fault = std::get<0>(info.param);
  return fmt::format("{}_{}_{}",
                     fault == Fault::kill   ? "kill"
                     : fault == Fault::stop ? "stop"
                                            : "slow",
                     std::get<1>(info.param) ? "prefill" : "decode",
                     std::get<2>(info.param) == shared ? "shared" : "stream");
}

class ExpertFaults : public ::testing::TestWithParam<FaultCase> {};
INSTANTIATE_TEST_SUITE_P(Phases, ExpertFaults,
                         ::testing::Combine(::testing::Values(Fault::kill, Fault::stop,
                                                              Fault::slow),
                                            ::testing::Bool(), ::testing::Values(shared, stream)),
                         case_name);

// The request goes on with the same bits, and the worker is used again when it is back.
TEST_P(ExpertFaults, TheRequestCompletes) {
  const Fault fault = std::get<0>(GetParam());
  const bool prefill = std::get<1>(GetParam());
  const std::string model = file("qwen35moe", "-bf16.gguf");
  const GoldenData golden = GoldenData::load(file("qwen35moe", ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(90);
  ExpertRig rig;
  rig.transport = std::get<2>(GetParam());
  ModelRunner runner(model, rig.runner(model, 30.0, 1));
  ASSERT_TRUE(runner.ready());
  const int chunk = prefill ? 30 : 1;
  const std::vector<float> healthy = runner.logits(ids, chunk);
  ASSERT_EQ(rig.fallbacks(), 0);
  const int pid = child_processes().front();
  ::kill(pid, SIGSTOP);  // so that it is in the middle of a job
  std::thread other([fault, pid] {
    std::this_thread::sleep_for(20ms);
    if (fault == Fault::kill) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(80ms);
    if (fault == Fault::slow) ::kill(pid, SIGCONT);
  });
  const auto begin = Clock::now();
  EXPECT_TRUE(runner.logits(ids, chunk) == healthy);
  EXPECT_LT(Clock::now() - begin, 10s);
  other.join();
  EXPECT_GT(rig.fallbacks(), 0);
  ASSERT_TRUE(
      eventually([&] { return rig.connections[0]->state() == worker::WorkerState::healthy; }));
  const double before = rig.fallbacks();
  const std::uint64_t calls = rig.metrics.worker.calls.value();
  EXPECT_TRUE(runner.logits(ids, 30) == healthy);
  EXPECT_GT(rig.metrics.worker.calls.value(), calls);
  EXPECT_EQ(rig.fallbacks(), before) << "it computes again";
}

TEST(ExpertFault, WrongAnswersAreNotBelieved) {
  const std::string model = file("qwen35moe", "-bf16.gguf");
  const GoldenData golden = GoldenData::load(file("qwen35moe", ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(90);
  ExpertRig good;
  ModelRunner plain(model, good.runner(model, 30.0, 1));
  ASSERT_TRUE(plain.ready());
  const std::vector<float> expected = plain.logits(ids, 30);
  for (const auto transport : {shared, stream}) {
    for (const char* how : {"absurd", "short", "refusal", "nothing", "exit"}) {
      SCOPED_TRACE(how);
      ExpertRig rig;
      rig.transport = transport;
      rig.binary = FAKE_WORKER;
      rig.mode = std::string("jobs_") + how;
      ModelRunner runner(model, rig.runner(model, 30.0, 1));
      ASSERT_TRUE(runner.ready());
      const auto begin = Clock::now();
      EXPECT_TRUE(runner.logits(ids, 30) == expected);
      EXPECT_LT(Clock::now() - begin, 15s);
      EXPECT_GT(rig.fallbacks(), 0);
    }
  }
}

// Kills at random moments: every answer is right, and nothing is left of those that died.
// TESSERA_TEST_KILLS=1000 makes it as long as that.
TEST(ExpertFault, ManyKillsLeaveNothingBehind) {
  const auto wanted = environment_variable("TESSERA_TEST_KILLS");
  const int kills = wanted ? std::stoi(*wanted) : 15;
  set_log_level(LogLevel::error);
  const std::string model = file("qwen35moe", "-bf16.gguf");
  const GoldenData golden = GoldenData::load(file("qwen35moe", ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(40);
  std::mt19937 random(11);
  std::uniform_int_distribution<int> moment(0, 3000);  // microseconds
  ExpertRig rig;
  ModelRunner runner(model, rig.runner(model, 30.0, 1));
  ASSERT_TRUE(runner.ready());
  const std::vector<float> healthy = runner.logits(ids, 8);
  const ProcessCounts before;
  Counter& starts =
      rig.registry.counter("tessera_worker_starts_total", "", {{"worker", "worker:0"}});
  const auto is_back = [&](int times) {
    return eventually([&] {
      return starts.value() >= static_cast<std::uint64_t>(times) &&
             rig.connections[0]->state() == worker::WorkerState::healthy;
    });
  };
  for (int i = 0; i < kills; ++i) {
    ASSERT_TRUE(is_back(i + 1));
    std::thread killer([pid = child_processes().front(), delay = moment(random)] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      ::kill(pid, SIGKILL);
    });
    ASSERT_TRUE(runner.logits(ids, i % 2 == 0 ? 8 : 1) == healthy) << i;
    killer.join();
  }
  ASSERT_TRUE(is_back(kills + 1));
  const ProcessCounts after;
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.children, before.children);
  EXPECT_EQ(after.segments, before.segments);
  EXPECT_LT(after.memory_kib, before.memory_kib + 20'000);
  std::printf(
      "%d kills: %d descriptors, %zu children, %d segments, %ld KiB; before %d, %zu, %d, "
      "%ld; %g jobs by the host\n",
      kills, after.descriptors, after.children, after.segments, after.memory_kib,
      before.descriptors, before.children, before.segments, before.memory_kib, rig.fallbacks());
  set_log_level(LogLevel::info);
}

TEST(ExpertFault, RequiredFailsTheRequest) {
  const std::string model = file("qwen35moe", "-bf16.gguf");
  ExpertRig rig;
  rig.options.required = true;
  rig.backoff = 60s;  // it does not come back before the next batch
  ModelRunner runner(model, rig.runner(model, 30.0, 1));
  ASSERT_TRUE(runner.ready());
  const std::vector<TokenId> ids(20, 7);
  ModelRunner::Sequence sequence = runner.start(100);
  const auto forward = [&] {
    sequence.state.extend(20);
    const SequenceRows rows{.n_rows = 20,
                            .first_position = sequence.position,
                            .slot = sequence.state.slot(),
                            .pages = sequence.state.page_tables()};
    sequence.position += 20;
    return runner.pipeline().forward({.tokens = ids, .sequences = {&rows, 1}, .logit_rows = {}});
  };
  EXPECT_TRUE(forward());
  ::kill(child_processes().front(), SIGKILL);
  const Status status = forward();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::unavailable);
  EXPECT_TRUE(runner.pipeline().keeps_state());
}

}  // namespace
}  // namespace tessera::testing
