// A model of which a CPU device's budget holds only a part gives the answers of the plain run: what
// stays in the file is packed as it is used, with the bits of what was packed at load.
#include <gtest/gtest.h>

#include <cstdio>

#include "device/shard_tensors.h"
#include "golden_data.h"
#include "least_budget.h"
#include "model/synth.h"
#include "model_runner.h"

namespace tessera::testing {
namespace {

TokenId best_of(std::span<const float> row) {
  return static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Logits over the ids within budgets from all that the model takes to the least.
void expect_same_within_budgets(const std::string& path, RunnerOptions options,
                                std::span<const std::int32_t> ids) {
  ModelRunner plain(path, options);
  ASSERT_TRUE(plain.ready());
  const std::vector<float> whole = plain.logits(ids, 64);
  const ShardPlan& shard = plain.plan().shards.front();
  const std::int64_t most = shard.total_bytes() + shard.host_bytes;
  const std::int64_t least = least_budget(plain.model(), options);
  ASSERT_LT(least, most);
  for (const int share : {67, 33, 0}) {
    SCOPED_TRACE(share);
    options.budget = least + (most - least) * share / 100;
    ModelRunner runner(path, options);
    ASSERT_TRUE(runner.ready());
    const ShardPlan& tight = runner.plan().shards.front();
    EXPECT_LE(tight.total_bytes() + tight.host_bytes, *options.budget);
    if (share == 0) {
      EXPECT_EQ(tight.layout.file_parts, file_part_count(plain.spec(), tight.layout));
      EXPECT_EQ(tight.experts, 0);
    }
    EXPECT_TRUE(runner.logits(ids, 64) == whole);
    EXPECT_TRUE(runner.logits(ids, 1) == whole);
  }
}

class Budget : public ::testing::TestWithParam<const char*> {
 protected:
  std::string model() const { return golden_path(GetParam(), "-bf16.gguf"); }
  GoldenData answers() const { return GoldenData::load(golden_path(GetParam(), ".bin")); }
};
INSTANTIATE_TEST_SUITE_P(Models, Budget,
                         ::testing::Values("qwen35moe", "qwen35", "laguna", "gemma4", "gemma4moe",
                                           "qwen3"),
                         [](const auto& info) { return info.param; });

TEST_P(Budget, LogitsAreThoseOfThePlainRun) {
  const GoldenData golden = answers();
  expect_same_within_budgets(model(), {.prefill_chunk = 64, .logit_rows = 64},
                             golden.ints("p300_ids"));
}

TEST_P(Budget, GreedyTokens) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> prompt = golden.ints("p33_ids");
  const std::span<const std::int32_t> expected = golden.ints("greedy_from_p33");
  const std::span<const float> margin = golden.floats("greedy_margin");
  RunnerOptions options{.prefill_chunk = 64, .logit_rows = 64};
  options.budget = least_budget(*Model::open(model()), options);
  ModelRunner runner(model(), options);
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

// Two teams share what the machine has left.
TEST_P(Budget, EachShardHasItsOwn) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(100);
  RunnerOptions options{.prefill_chunk = 64, .logit_rows = 64};
  options.placement.devices = {{.team = 0}, {.team = 1}};
  ModelRunner plain(model(), options);
  ASSERT_TRUE(plain.ready());
  options.budget = least_budget(plain.model(), options);
  ModelRunner runner(model(), options);
  ASSERT_TRUE(runner.ready());
  EXPECT_GT(runner.plan().shards[0].file_bytes, 0);
  EXPECT_TRUE(runner.logits(ids, 64) == plain.logits(ids, 64));
}

// Quantised weights, and the same ones dequantised at load or as they are used.
TEST(BudgetQuantised, LogitsAreThoseOfThePlainRun) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 90; ++i) ids.push_back(20 + i * 7 % 200);
  const std::string path = ::testing::TempDir() + "budget_test.gguf";
  for (const char* family : {"qwen3", "qwen35moe"}) {
    ASSERT_TRUE(
        write_synthetic_model({.family = family, .preset = "tiny", .types = "q4_k_m"}, path));
    for (const bool f32 : {false, true})
      expect_same_within_budgets(path, {.prefill_chunk = 64, .logit_rows = 64, .f32_weights = f32},
                                 ids);
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tessera::testing
