// Layers split over two GPUs of one process, of one vendor or two, whose rows pass from one to the
// other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/typed_model.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

std::vector<TokenId> some_tokens(int count) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i) ids.push_back((i * 37 + 11) % 300);
  return ids;
}

RunnerOptions on(const std::vector<DeviceName>& devices) {
  RunnerOptions options;
  options.placement = gpu_placement();
  options.placement.devices = devices;
  options.device.gpu_plugins = plugin_folder();
  return options;
}

// Steps of one row, of a few and of many.
std::vector<std::vector<float>> steps_of_all_sizes(ModelRunner& runner) {
  const std::vector<TokenId> ids = some_tokens(11);
  return {runner.logits(std::span(ids).first(4), 1), runner.logits(ids, 7), runner.logits(ids, 11)};
}

struct Turns {
  int gpus, turns;
};

// Over so many GPUs in turns, as far as they are there.
void expect_the_bits_of_one(const TypedModel& file, std::initializer_list<Turns> all) {
  ModelRunner one(file.path(), on(gpus(1)));
  ASSERT_TRUE(one.ready());
  const auto expected = steps_of_all_sizes(one);
  for (const auto& [count, turns] : all) {
    const std::vector<DeviceName> devices = gpus(count);
    if (devices.empty()) continue;
    SCOPED_TRACE(fmt::format("{} GPUs, {} turns", count, turns));
    RunnerOptions options = on(devices);
    options.turns = turns;
    ModelRunner runner(file.path(), options);
    ASSERT_TRUE(runner.ready());
    const std::vector<ShardPlan>& shards = runner.plan().shards;
    EXPECT_EQ(shards.size(), static_cast<std::size_t>(count * turns));
    for (const ShardPlan& shard : shards)
      EXPECT_EQ(shard.layout.kept_pieces, shard.layout.head ? 0 : ring_pieces(count * turns));
    const auto got = steps_of_all_sizes(runner);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i] == expected[i]) << i;
  }
}

TEST(GpuPeers, HaveTheBitsOfOne) {
  if (gpus(2).empty()) GTEST_SKIP() << "no second GPU to test on";
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=4"});
  expect_the_bits_of_one(file, {{2, 1}, {3, 1}});
}

// Each GPU has several ranges of layers, in turns with the others'.
TEST(GpuPeers, HaveTheSameBitsInTurns) {
  if (gpus(2).empty()) GTEST_SKIP() << "no second GPU to test on";
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=7"});
  expect_the_bits_of_one(file, {{2, 3}, {3, 2}});
}

// Each GPU asks the host for its layers' experts in the midst of a step, or reads them itself and
// has them cross in longer ones, while rows pass between the two.
TEST(GpuPeers, AskTheHostForExperts) {
  const std::vector<DeviceName> devices = gpus(2);
  if (devices.empty()) GTEST_SKIP() << "no second GPU to test on";
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=2", "expert_count=24"});
  const std::vector<TokenId> ids = some_tokens(11);
  // Else the times measured say who computes which experts, and so how they are rounded.
  for (const ExpertStream stream : {ExpertStream::off, ExpertStream::on}) {
    RunnerOptions options = on({devices[0]});
    options.expert_resident = stream == ExpertStream::off ? 50.0 : 0.0;
    options.device.experts.options.stream = stream;
    ModelRunner one(file.path(), options);
    options.placement.devices = devices;
    ModelRunner two(file.path(), options);
    ASSERT_TRUE(one.ready() && two.ready());
    ASSERT_EQ(two.plan().shards.size(), 2u);
    for (const int chunk : {1, 5, 11})
      EXPECT_TRUE(two.logits(ids, chunk) == one.logits(ids, chunk)) << chunk;
  }
}

// Batches that ask for no logits follow each other: the first GPU is ahead, and what it keeps for
// the second one must stay until that has it.
TEST(GpuPeers, MayBeSeveralBatchesApart) {
  const std::vector<DeviceName> devices = gpus(2);
  if (devices.empty()) GTEST_SKIP() << "no second GPU to test on";
  const TypedModel file("qwen3", BlockType::Q4_K, {"block_count=4"});
  ModelRunner one(file.path(), on({devices[0]}));
  // Most of the work is the second one's.
  RunnerOptions options = on(devices);
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

// --- GPUs of two vendors ---

// The first usable GPU of each vendor.
std::vector<DeviceName> one_of_each_vendor() {
  std::vector<DeviceName> names;
  for (const GpuVendor& vendor : probe_gpus(plugin_folder()))
    for (std::size_t i = 0; i < vendor.devices.size(); ++i) {
      if (vendor.devices[i].refusal[0] != '\0') continue;
      names.push_back(*parse_device_name(vendor.vendor + ":" + std::to_string(i)));
      break;
    }
  return names;
}

std::vector<TokenId> greedy_tokens(ModelRunner& runner, int count) {
  const auto vocab = static_cast<std::ptrdiff_t>(runner.spec().n_vocab);
  ModelRunner::Sequence sequence = runner.start(64);
  ModelRunner::Feed feed{&sequence, some_tokens(9)};
  std::vector<TokenId> chosen;
  for (int i = 0; i < count; ++i) {
    const std::vector<float> logits = runner.step({&feed, 1});
    const auto last = logits.end() - vocab;
    chosen.push_back(static_cast<TokenId>(std::max_element(last, logits.end()) - last));
    feed.tokens = {chosen.back()};
  }
  return chosen;
}

// Rows go by the host's memory from one vendor's GPU to the other's, which may both be number 0.
TEST(GpuVendors, ChooseTheTokensOfOne) {
  GPU_OR_SKIP();
  std::vector<DeviceName> devices = one_of_each_vendor();
  if (devices.size() < 2) GTEST_SKIP() << "no second vendor's GPU to test on";
  const TypedModel file("qwen35moe", BlockType::Q8_0, {"block_count=2", "expert_count=24"});
  ModelRunner one(file.path(), on({devices[0]}));
  ASSERT_TRUE(one.ready());
  const std::vector<TokenId> expected = greedy_tokens(one, 8);
  for (int order = 0; order < 2; ++order) {
    ModelRunner both(file.path(), on(devices));
    ASSERT_TRUE(both.ready());
    ASSERT_EQ(both.plan().shards.size(), 2u);
    EXPECT_TRUE(greedy_tokens(both, 8) == expected) << "order " << order;
    std::swap(devices[0], devices[1]);
  }
}

}  // namespace
}  // namespace tessera::testing
