// Layers split over two GPUs of one process, whose rows pass from one to the other.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/typed_model.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

// The second GPU of the first one's kind, or null.
std::optional<DeviceName> second_gpu() {
  if (!test_gpu().name) return std::nullopt;
  DeviceName name = *test_gpu().name;
  name.team = *name.team + 1;
  const auto info = probe_gpu(device_kind_name(name.kind), *name.team, plugin_folder());
  if (!info || info->refusal[0] != '\0') return std::nullopt;
  return name;
}

RunnerOptions on(const std::vector<DeviceName>& devices) {
  RunnerOptions options;
  options.placement = gpu_placement();
  options.placement.devices = devices;
  options.device.gpu_plugins = plugin_folder();
  return options;
}

// Steps of one row to many.
TEST(GpuPeers, HaveTheBitsOfOne) {
  const auto second = second_gpu();
  if (!second) GTEST_SKIP() << "no second GPU to test on";
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=4"});
  ModelRunner one(file.path(), on({*test_gpu().name}));
  ModelRunner two(file.path(), on({*test_gpu().name, *second}));
  ASSERT_TRUE(one.ready() && two.ready());
  ASSERT_EQ(two.plan().shards.size(), 2u);
  EXPECT_EQ(two.plan().shards[0].layout.kept_pieces, ring_pieces(2));
  EXPECT_EQ(two.plan().shards[1].layout.kept_pieces, 0);
  std::vector<TokenId> ids;
  for (int i = 0; i < 40; ++i) ids.push_back((i * 37 + 11) % 300);
  for (const int chunk : {1, 7, 40})
    EXPECT_TRUE(two.logits(ids, chunk) == one.logits(ids, chunk)) << chunk;
}

// Batches that ask for no logits follow each other: the first GPU is ahead, and what it keeps for
// the second one must stay until that has it.
TEST(GpuPeers, MayBeSeveralBatchesApart) {
  const auto second = second_gpu();
  if (!second) GTEST_SKIP() << "no second GPU to test on";
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=4"});
  ModelRunner one(file.path(), on({*test_gpu().name}));
  // Most of the work is the second one's.
  RunnerOptions options = on({*test_gpu().name, *second});
  options.placement.layer_weights = {1, 3};
  ModelRunner two(file.path(), options);
  ASSERT_TRUE(one.ready() && two.ready());
  constexpr int kBatches = 7, kRows = 9;
  const auto last_logits = [&](ModelRunner& runner) {
    ModelRunner::Sequence sequence = runner.start(kBatches * kRows);
    const std::vector<std::int32_t> last = {kRows - 1};
    for (int batch = 0; batch < kBatches; ++batch) {
      std::vector<TokenId> ids;
      for (int i = 0; i < kRows; ++i) ids.push_back((batch * 53 + i * 29) % 300);
      sequence.state.extend(kRows);
      const SequenceRows rows{.n_rows = kRows,
                              .first_position = batch * kRows,
                              .slot = sequence.state.slot(),
                              .pages = sequence.state.page_tables()};
      const bool end = batch + 1 == kBatches;
      const Status done =
          runner.pipeline().forward({.tokens = ids,
                                     .sequences = {&rows, 1},
                                     .logit_rows = end ? std::span<const std::int32_t>(last)
                                                       : std::span<const std::int32_t>()});
      EXPECT_TRUE(done) << done.error().message;
    }
    const std::span<const float> logits = runner.pipeline().logits();
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> expected = last_logits(one);
  for (const float x : expected) ASSERT_TRUE(std::isfinite(x));
  for (int round = 0; round < 2; ++round) EXPECT_TRUE(last_logits(two) == expected) << round;
}

}  // namespace
}  // namespace tessera::testing
