// A model some of whose experts are computed away from the device that runs their layer gives the
// answers of the plain run: for every family, any share of residents, any cut of the prompt and any
// neighbours in the batch.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>

#include "experts/host_executor.h"
#include "golden_data.h"
#include "model/synth.h"
#include "model_runner.h"

namespace tessera::testing {
namespace {

constexpr double kTolerance = 1e-4;  // of a log-probability

const char* const kModels[] = {"qwen35moe", "laguna", "gemma4moe"};

std::string file(const std::string& name, const char* ending) {
  return std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + ending;
}

TokenId best_of(std::span<const float> row) {
  return static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
}

// The largest difference of a log-probability; and whether the likeliest tokens are the same.
void expect_same(std::span<const float> got, std::span<const float> expected, std::size_t vocab,
                 const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double worst = 0.0;
  for (std::size_t row = 0; row * vocab < expected.size(); ++row) {
    const auto a = got.subspan(row * vocab, vocab), b = expected.subspan(row * vocab, vocab);
    EXPECT_EQ(best_of(a), best_of(b)) << what << ", row " << row;
    const std::vector<double> x = log_softmax(a), y = log_softmax(b);
    for (std::size_t i = 0; i < vocab; ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
  }
  EXPECT_LT(worst, kTolerance) << what;
}

class Experts : public ::testing::TestWithParam<const char*> {
 protected:
  std::string model() const { return file(GetParam(), "-bf16.gguf"); }
  GoldenData answers() const { return GoldenData::load(file(GetParam(), ".bin")); }
};
INSTANTIATE_TEST_SUITE_P(Models, Experts, ::testing::ValuesIn(kModels),
                         [](const auto& info) { return info.param; });

TEST_P(Experts, AnyShareOfResidents) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model(), {});
  ASSERT_TRUE(plain.ready());
  const auto vocab = static_cast<std::size_t>(plain.spec().n_vocab);
  const std::vector<float> whole = plain.logits(ids, 512);
  for (const double percent : {100.0, 60.0, 10.0, 0.0}) {
    ModelRunner runner(model(), {.expert_resident = percent});
    ASSERT_TRUE(runner.ready());
    const std::vector<float> got = runner.logits(ids, 512);
    expect_same(got, whole, vocab, fmt::format("{} %", percent));
    // Among themselves they are equal to the bit.
    EXPECT_TRUE(runner.logits(ids, 37) == got) << percent;
    EXPECT_TRUE(runner.logits(ids, 1) == got) << percent;
    const ShardPlan& shard = runner.plan().shards.front();
    EXPECT_EQ(shard.layout.experts.empty(), percent == 100.0);
    EXPECT_EQ(shard.experts_host == 0, percent == 100.0);
  }
}

TEST_P(Experts, GreedyTokens) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> prompt = golden.ints("p33_ids");
  const std::span<const std::int32_t> expected = golden.ints("greedy_from_p33");
  const std::span<const float> margin = golden.floats("greedy_margin");
  for (const double percent : {60.0, 0.0}) {
    ModelRunner runner(model(), {.expert_resident = percent});
    ASSERT_TRUE(runner.ready());
    const auto vocab = static_cast<std::ptrdiff_t>(runner.spec().n_vocab);
    ModelRunner::Sequence sequence = runner.start(128);
    ModelRunner::Feed feed{&sequence, {prompt.begin(), prompt.end()}};
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::vector<float> logits = runner.step({&feed, 1});
      const TokenId best = best_of({logits.end() - vocab, logits.end()});
      EXPECT_TRUE(best == expected[i] || margin[i] <= 1e-3f) << "step " << i;
      feed.tokens = {expected[i]};
    }
  }
}

TEST_P(Experts, AnyNeighboursAnyThreadsAnyShards) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(120);
  ModelRunner one(model(), {.threads = 1, .expert_resident = 40.0});
  ASSERT_TRUE(one.ready());
  const auto vocab = static_cast<std::size_t>(one.spec().n_vocab);
  const std::vector<float> alone = one.logits(ids, 512);
  Placement two;
  two.devices = {{.team = 0}, {.team = 1}};
  for (const bool split : {false, true}) {
    RunnerOptions options{.threads = 3, .expert_resident = 40.0};
    if (split) options.placement = two;
    ModelRunner runner(model(), options);
    ASSERT_TRUE(runner.ready());
    ModelRunner::Sequence a = runner.start(400), b = runner.start(400);
    std::vector<float> together;
    std::size_t at = 0;
    for (int round = 0; at < ids.size(); ++round) {
      const std::size_t n = std::min(static_cast<std::size_t>(1 + round * 5 % 13), ids.size() - at);
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(at);
      ModelRunner::Feed feeds[] = {{&a, {static_cast<TokenId>(round % 500), 5, 7}},
                                   {&b, {begin, begin + static_cast<std::ptrdiff_t>(n)}}};
      const std::vector<float> logits = runner.step(feeds);
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(3 * vocab);
      together.insert(together.end(), first, first + static_cast<std::ptrdiff_t>(n * vocab));
      at += n;
    }
    EXPECT_TRUE(together == alone) << (split ? "two shards" : "one shard");
  }
}

// A worker of this process that fails on demand.
struct Faults {
  std::atomic<bool> refuse{false};
  std::atomic<bool> late{false};
  std::atomic<int> served{0};
};

class FaultyWorker final : public ExpertExecutor {
 public:
  FaultyWorker(std::unique_ptr<ExpertExecutor> inner, Faults& faults)
      : inner_(std::move(inner)), faults_(faults) {}
  std::string name() const override { return "worker:0"; }
  ExpertLimits limits() const override { return inner_->limits(); }
  Status submit(const ExpertJob& job) override {
    if (faults_.refuse) return Error::make(ErrorCode::unavailable, "it is down");
    return inner_->submit(job);
  }
  Result<ExpertReport> collect(std::span<float> sums) override {
    if (faults_.late) {
      inner_->drop();
      std::fill(sums.begin(), sums.end(), NAN);
      return Error::make(ErrorCode::cancelled, "it is late");
    }
    ++faults_.served;
    return inner_->collect(sums);
  }
  void drop() override { inner_->drop(); }

 private:
  std::unique_ptr<ExpertExecutor> inner_;
  Faults& faults_;
};

RunnerOptions with_worker(const Model& model, Faults& faults, bool required) {
  RunnerOptions options{.expert_resident = 30.0, .expert_workers = 1};
  options.device.experts.options.required = required;
  options.device.experts.workers = [&model, &faults](const ShardLayout& layout) {
    auto inner = make_host_executor(model, {.first_layer = layout.first_layer,
                                            .end_layer = layout.end_layer,
                                            .max_rows = layout.max_rows});
    EXPECT_TRUE(inner);
    std::vector<std::unique_ptr<ExpertExecutor>> workers;
    workers.push_back(std::make_unique<FaultyWorker>(*std::move(inner), faults));
    return workers;
  };
  return options;
}

TEST_P(Experts, AWorkerThatFailsChangesNothing) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  const Result<Model> opened = Model::open(model());
  ASSERT_TRUE(opened);
  Faults faults;
  ModelRunner runner(model(), with_worker(*opened, faults, false));
  ASSERT_TRUE(runner.ready());
  EXPECT_GT(runner.plan().shards[0].experts_worker, 0);
  EXPECT_EQ(runner.plan().shards[0].experts_host, 0);
  const std::vector<float> whole = runner.logits(ids, 100);
  EXPECT_GT(faults.served, 0);
  faults.refuse = true;
  const int served = faults.served;
  EXPECT_TRUE(runner.logits(ids, 100) == whole);
  EXPECT_EQ(faults.served, served);
  faults.refuse = false;
  faults.late = true;
  EXPECT_TRUE(runner.logits(ids, 100) == whole);
  faults.late = false;
  EXPECT_TRUE(runner.logits(ids, 50) == whole);
  EXPECT_GT(faults.served, served);
}

TEST_P(Experts, ARequiredWorkerThatFailsSpoilsItsBatchOnly) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(60);
  const Result<Model> opened = Model::open(model());
  ASSERT_TRUE(opened);
  Placement two;
  two.devices = {{.team = 0}, {.team = 1}};
  for (const bool split : {false, true}) {
    Faults faults;
    RunnerOptions options = with_worker(*opened, faults, true);
    if (split) options.placement = two;
    ModelRunner runner(model(), options);
    ASSERT_TRUE(runner.ready());
    const std::vector<float> whole = runner.logits(ids, 60);
    ModelRunner::Sequence kept = runner.start(100), spoilt = runner.start(100);
    ModelRunner::Feed first{&kept, {ids.begin(), ids.begin() + 20}};
    std::vector<float> logits = runner.step({&first, 1});
    faults.late = true;
    ModelRunner::Feed lost{&spoilt, {ids.begin(), ids.begin() + 30}};
    const Result<std::vector<float>> failed = runner.try_step({&lost, 1});
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::unavailable);
    EXPECT_NE(failed.error().message.find("worker:0"), std::string::npos);
    EXPECT_TRUE(runner.pipeline().keeps_state());
    faults.late = false;
    ModelRunner::Feed rest{&kept, {ids.begin() + 20, ids.end()}};
    const std::vector<float> more = runner.step({&rest, 1});
    logits.insert(logits.end(), more.begin(), more.end());
    EXPECT_TRUE(logits == whole) << (split ? "two shards" : "one shard");
  }
}

// Experts come and go between steps; the answers stay.
TEST_P(Experts, ExpertsThatComeWhileServingChangeNothing) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model(), {});
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  RunnerOptions options{.expert_resident = 25.0, .expert_spare = 2};
  options.device.experts.metrics = &metrics;
  ModelRunner runner(model(), options);
  ASSERT_TRUE(plain.ready() && runner.ready());
  const auto vocab = static_cast<std::size_t>(plain.spec().n_vocab);
  const std::vector<float> whole = plain.logits(ids, 512);
  for (const int chunk : {100, 1, 13})
    expect_same(runner.logits(ids, chunk), whole, vocab, fmt::format("chunks of {}", chunk));
  EXPECT_GT(metrics.cache_admit.value(), 2u);
  EXPECT_GT(metrics.cache_hit.value(), 0u);
  EXPECT_GT(metrics.host.pairs.value(), 0u);
}

// Quantised weights, and the same ones dequantised at load.
TEST(ExpertsQuantised, AnyShareOfResidents) {
  const std::string path = ::testing::TempDir() + "experts_test.gguf";
  ASSERT_TRUE(write_synthetic_model({.preset = "tiny"}, path));
  std::vector<TokenId> ids;
  for (int i = 0; i < 90; ++i) ids.push_back(20 + i * 7 % 200);
  for (const bool f32 : {false, true}) {
    ModelRunner plain(path, {.f32_weights = f32});
    ASSERT_TRUE(plain.ready());
    const std::vector<float> whole = plain.logits(ids, 64);
    const auto vocab = static_cast<std::size_t>(plain.spec().n_vocab);
    for (const double percent : {50.0, 0.0}) {
      ModelRunner runner(path, {.f32_weights = f32, .expert_resident = percent});
      ASSERT_TRUE(runner.ready());
      const std::vector<float> got = runner.logits(ids, 64);
      expect_same(got, whole, vocab, fmt::format("{} %{}", percent, f32 ? " in f32" : ""));
      EXPECT_TRUE(runner.logits(ids, 1) == got);
    }
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tessera::testing
