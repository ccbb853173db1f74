// A model some of whose experts are computed away from the device that runs their layer gives the
// bits of the plain run, with quantised weights too: for every family, any share of residents, any
// cut of the prompt, any number of threads and any neighbours in the batch.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <thread>

#include "experts/host_executor.h"
#include "model/synth.h"
#include "tests/expert_models.h"
#include "tests/golden_data.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

TokenId best_of(std::span<const float> row) {
  return static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
}

class Experts : public ::testing::TestWithParam<const char*> {
 protected:
  std::string model() const { return expert_model(GetParam()); }
  std::vector<TokenId> ids(std::size_t n) const { return expert_prompt(GetParam(), n); }
  std::vector<float> plain(std::span<const TokenId> prompt) const {
    ModelRunner runner(model(), {});
    return runner.ready() ? runner.logits(prompt, 512) : std::vector<float>();
  }
};
INSTANTIATE_TEST_SUITE_P(Models, Experts, ::testing::ValuesIn(kExpertModels),
                         [](const auto& info) { return info.param; });

TEST_P(Experts, AnyShareOfResidents) {
  const std::vector<TokenId> prompt = ids(160);
  const std::vector<float> whole = plain(prompt);
  ASSERT_FALSE(whole.empty());
  int threads = 0;
  for (const double percent : {100.0, 60.0, 10.0, 0.0}) {
    threads = threads % 3 + 1;
    ModelRunner runner(model(), {.threads = threads, .expert_resident = percent});
    ASSERT_TRUE(runner.ready());
    for (const int chunk : {512, 37, 1})
      EXPECT_TRUE(runner.logits(prompt, chunk) == whole) << percent << " %, chunks of " << chunk;
    const ShardPlan& shard = runner.plan().shards.front();
    EXPECT_EQ(shard.layout.experts.empty(), percent == 100.0);
    EXPECT_EQ(shard.experts_host == 0, percent == 100.0);
  }
}

// Of the unquantised models, whose answers are known.
class GoldenExperts : public Experts {};
INSTANTIATE_TEST_SUITE_P(Models, GoldenExperts,
                         ::testing::Values("qwen35moe", "laguna", "gemma4moe"),
                         [](const auto& info) { return info.param; });

TEST_P(GoldenExperts, GreedyTokens) {
  const GoldenData golden = GoldenData::load(golden_path(GetParam(), ".bin"));
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
  const std::vector<TokenId> prompt = ids(120);
  const std::vector<float> alone = plain(prompt);
  const std::size_t vocab = alone.size() / prompt.size();
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
    for (int round = 0; at < prompt.size(); ++round) {
      const std::size_t n =
          std::min(static_cast<std::size_t>(1 + round * 5 % 13), prompt.size() - at);
      const auto begin = prompt.begin() + static_cast<std::ptrdiff_t>(at);
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
  // The next job of a later shard ends when the first shard has submitted more than these.
  std::atomic<int> awaited{0};
  std::atomic<int> first_submitted{0};
};

class FaultyWorker final : public ExpertExecutor {
 public:
  FaultyWorker(std::unique_ptr<ExpertExecutor> inner, Faults& faults, bool first)
      : inner_(std::move(inner)), faults_(faults), first_(first) {}
  std::string name() const override { return "worker:0"; }
  ExpertLimits limits() const override { return inner_->limits(); }
  Status submit(const ExpertJob& job) override {
    if (faults_.refuse) return Error::make(ErrorCode::unavailable, "it is down");
    if (first_) ++faults_.first_submitted;
    return inner_->submit(job);
  }
  Result<ExpertReport> collect(std::span<double> sums) override {
    if (faults_.late) {
      inner_->drop();
      std::fill(sums.begin(), sums.end(), NAN);
      return Error::make(ErrorCode::cancelled, "it is late");
    }
    ++faults_.served;
    if (!first_) await_first(faults_.awaited.exchange(0));
    return inner_->collect(sums);
  }
  void drop() override { inner_->drop(); }

 private:
  void await_first(int jobs) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (jobs > 0 && faults_.first_submitted <= jobs) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() < end) continue;
      ADD_FAILURE() << "the first shard waits for the second";
      return;
    }
  }

  std::unique_ptr<ExpertExecutor> inner_;
  Faults& faults_;
  bool first_;  // shard of the model
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
    workers.push_back(
        std::make_unique<FaultyWorker>(*std::move(inner), faults, layout.first_layer == 0));
    return workers;
  };
  return options;
}

TEST_P(Experts, AWorkerThatFailsChangesNothing) {
  const std::vector<TokenId> prompt = ids(300);
  const Result<Model> opened = Model::open(model());
  ASSERT_TRUE(opened);
  Faults faults;
  ModelRunner runner(model(), with_worker(*opened, faults, false));
  ASSERT_TRUE(runner.ready());
  EXPECT_GT(runner.plan().shards[0].experts_worker, 0);
  EXPECT_EQ(runner.plan().shards[0].experts_host, 0);
  const std::vector<float> whole = plain(prompt);
  EXPECT_TRUE(runner.logits(prompt, 100) == whole);
  EXPECT_GT(faults.served, 0);
  faults.refuse = true;
  const int served = faults.served;
  EXPECT_TRUE(runner.logits(prompt, 100) == whole);
  EXPECT_EQ(faults.served, served);
  faults.refuse = false;
  faults.late = true;
  EXPECT_TRUE(runner.logits(prompt, 100) == whole);
  faults.late = false;
  EXPECT_TRUE(runner.logits(prompt, 50) == whole);
  EXPECT_GT(faults.served, served);
}

TEST_P(Experts, ARequiredWorkerThatFailsSpoilsItsBatchOnly) {
  const std::vector<TokenId> prompt = ids(60);
  const std::vector<float> whole = plain(prompt);
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
    ModelRunner::Sequence kept = runner.start(100), spoilt = runner.start(100);
    ModelRunner::Feed first{&kept, {prompt.begin(), prompt.begin() + 20}};
    std::vector<float> logits = runner.step({&first, 1});
    faults.late = true;
    ModelRunner::Feed lost{&spoilt, {prompt.begin(), prompt.begin() + 30}};
    const Result<std::vector<float>> failed = runner.try_step({&lost, 1});
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, ErrorCode::unavailable);
    EXPECT_NE(failed.error().message.find("worker:0"), std::string::npos);
    EXPECT_TRUE(runner.pipeline().keeps_state());
    faults.late = false;
    ModelRunner::Feed rest{&kept, {prompt.begin() + 20, prompt.end()}};
    const std::vector<float> more = runner.step({&rest, 1});
    logits.insert(logits.end(), more.begin(), more.end());
    EXPECT_TRUE(logits == whole) << (split ? "two shards" : "one shard");
  }
}

TEST_P(Experts, ChunksFollowEachOtherThroughShardsWithARequiredWorker) {
  const std::vector<TokenId> prompt = ids(300);
  const std::vector<float> whole = plain(prompt);
  const Result<Model> opened = Model::open(model());
  ASSERT_TRUE(opened);
  Faults faults;
  RunnerOptions options = with_worker(*opened, faults, true);
  options.placement.devices = {{.team = 0}, {.team = 1}};
  ModelRunner runner(model(), options);
  ASSERT_TRUE(runner.ready());
  // The second shard's first job ends when the first shard is at its second chunk: a job a layer.
  const std::vector<LayerExperts>& layers = runner.plan().shards[0].layout.experts;
  faults.awaited =
      static_cast<int>(std::count_if(layers.begin(), layers.end(), [](const LayerExperts& layer) {
        return std::any_of(layer.home.begin(), layer.home.end(),
                           [](ExpertHome home) { return home.is_worker(); });
      }));
  const std::vector<float> last = runner.last_logits(prompt, 100);
  EXPECT_EQ(faults.awaited, 0);
  EXPECT_TRUE(
      std::equal(last.begin(), last.end(), whole.end() - static_cast<std::ptrdiff_t>(last.size())));
}

// Its forward() may have returned before: then the next one of the sequence says so.
TEST_P(Experts, ALateFailureOfARequiredWorkerSpoilsItsSequenceOnly) {
  const std::vector<TokenId> prompt = ids(60);
  const std::vector<float> whole = plain(prompt);
  const Result<Model> opened = Model::open(model());
  ASSERT_TRUE(opened);
  Faults faults;
  RunnerOptions options = with_worker(*opened, faults, true);
  options.placement.devices = {{.team = 0}, {.team = 1}};
  ModelRunner runner(model(), options);
  ASSERT_TRUE(runner.ready());
  ModelRunner::Sequence kept = runner.start(100), spoilt = runner.start(100);
  ModelRunner::Feed first{&kept, {prompt.begin(), prompt.begin() + 20}};
  std::vector<float> logits = runner.step({&first, 1});
  const auto feed_spoilt = [&] {
    spoilt.state.extend(8);
    const SequenceRows rows{.n_rows = 8,
                            .first_position = spoilt.position,
                            .slot = spoilt.state.slot(),
                            .pages = spoilt.state.page_tables()};
    spoilt.position += 8;
    return runner.pipeline().forward(
        {.tokens = std::span(prompt).first(8), .sequences = {&rows, 1}, .logit_rows = {}});
  };
  faults.late = true;
  (void)feed_spoilt();
  EXPECT_FALSE(runner.pipeline().finish());
  faults.late = false;
  const int served = faults.served;
  EXPECT_FALSE(feed_spoilt());
  EXPECT_FALSE(runner.pipeline().finish());
  EXPECT_EQ(faults.served, served) << "rows that nobody wants were computed";
  ModelRunner::Feed both[] = {{&spoilt, {1, 2}}, {&kept, {prompt.begin() + 20, prompt.end()}}};
  EXPECT_FALSE(runner.try_step(both));
  EXPECT_TRUE(runner.pipeline().keeps_state());
  EXPECT_NE(runner.pipeline().spoilt().find(spoilt.state.slot()), nullptr);
  EXPECT_EQ(runner.pipeline().spoilt().find(kept.state.slot()), nullptr);
  const std::span<const float> more = runner.pipeline().logits();
  const auto vocab = static_cast<std::ptrdiff_t>(runner.spec().n_vocab);
  logits.insert(logits.end(), more.begin() + 2 * vocab, more.end());
  EXPECT_TRUE(logits == whole);
  spoilt = {};
  spoilt = runner.start(100);
  ModelRunner::Feed again{&spoilt, prompt};
  EXPECT_TRUE(runner.step({&again, 1}) == whole);
}

// Experts come and go between steps, in the middle of an answer; the bits stay.
TEST_P(Experts, ExpertsThatComeWhileServingChangeNothing) {
  const std::vector<TokenId> prompt = ids(300);
  const std::vector<float> whole = plain(prompt);
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  RunnerOptions options{.expert_resident = 25.0, .expert_spare = 2};
  options.device.experts.metrics = &metrics;
  ModelRunner runner(model(), options);
  ASSERT_TRUE(runner.ready());
  for (const int chunk : {100, 1, 13})
    EXPECT_TRUE(runner.logits(prompt, chunk) == whole) << "chunks of " << chunk;
  // They are copied beside the steps, and when they come depends on the machine.
  for (int i = 0; i < 100 && metrics.cache_admit.value() <= 2; ++i)
    EXPECT_TRUE(runner.logits(prompt, 1) == whole);
  EXPECT_GT(metrics.cache_admit.value(), 2u);
  EXPECT_GT(metrics.cache_hit.value(), 0u);
  EXPECT_EQ(metrics.cache_miss.value(), metrics.host.pairs.value());
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
    for (const double percent : {50.0, 0.0}) {
      ModelRunner runner(path, {.f32_weights = f32, .expert_resident = percent});
      ASSERT_TRUE(runner.ready());
      for (const int chunk : {64, 1})
        EXPECT_TRUE(runner.logits(ids, chunk) == whole) << percent << (f32 ? " % in f32" : " %");
    }
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tessera::testing
