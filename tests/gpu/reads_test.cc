// Experts that a step of few rows reads in the host's memory, beside those that it asks the host
// for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "tests/gpu/asking.h"
#include "tests/gpu/typed_model.h"
#include "tests/model_runner.h"

namespace tessera::testing {
namespace {

// With 24 experts, of which a row uses so many.
TypedModel small_model(int used) {
  return TypedModel(
      "qwen35moe", BlockType::Q4_K,
      {"expert_count=24", "expert_used_count=" + std::to_string(used), "block_count=2"});
}

RunnerOptions with_reads(double resident, bool graphs, ExpertMetrics* metrics) {
  RunnerOptions options;
  options.placement = gpu_placement();
  options.device.gpu_plugins = plugin_folder();
  options.device.gpu_graphs = graphs;
  options.device.experts.options.stream = ExpertStream::on;
  options.device.experts.metrics = metrics;
  options.expert_resident = resident;
  return options;
}

// All of them: as a graph and piece by piece, alone and among others the same bits, which do not
// show which of them are resident; and nothing is the host's.
TEST(GpuReads, HaveTheBitsOfResidentOnes) {
  GPU_OR_SKIP();
  const TypedModel file = small_model(3);
  std::vector<TokenId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back((i * 37 + 11) % 300);
  ModelRunner here(file.path(), with_reads(100.0, true, nullptr));
  ASSERT_TRUE(here.ready());
  std::vector<float> first;
  for (const double percent : {0.0, 50.0}) {
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    ModelRunner graphs(file.path(), with_reads(percent, true, &metrics));
    ModelRunner pieces(file.path(), with_reads(percent, false, nullptr));
    ASSERT_TRUE(graphs.ready() && pieces.ready());
    for (const int chunk : {1, 8}) {
      const std::vector<float> got = graphs.logits(ids, chunk);
      if (first.empty()) first = got;
      EXPECT_TRUE(got == first) << percent << ", " << chunk << " rows";
      EXPECT_TRUE(got == pieces.logits(ids, chunk)) << percent << ", " << chunk << " rows";
      EXPECT_LT(mean_difference(got, here.logits(ids, chunk)), 1e-2);
    }
    EXPECT_EQ(metrics.host.pairs.value(), 0u);
    EXPECT_GT(metrics.pairs_streamed.value(), 0u);
    EXPECT_GE(metrics.streamed_bytes.value(), metrics.expert_bytes_streamed.value());
  }
}

// A row by itself decides, and asks for the rest.
TEST(GpuReads, AreOfTheLowestNumbersThatARowLacks) {
  GPU_OR_SKIP();
  const TypedModel file = small_model(8);
  Asking asking(file.path(), 60, true, true);
  const std::vector<std::uint8_t> reads = {0, 0, 1, 1, 2, 2, 3, 3, 4};
  asking.device().divide_reads(reads);
  int asked = 0, read = 0;
  const auto look = [&](int, std::span<const RoutedPair> pairs) {
    for (int row = 0; row < 2; ++row) {
      std::vector<std::int32_t> away, fetched;
      for (const RoutedPair& pair : pairs) {
        if (pair.row != row) continue;
        EXPECT_TRUE(pair.expert >= 0 && pair.expert < 24);
        if (pair.expert % 2 == 1) away.push_back(pair.expert);
        if (pair.fetched) fetched.push_back(pair.expert);
      }
      std::sort(away.begin(), away.end());
      std::sort(fetched.begin(), fetched.end());
      ASSERT_LT(away.size(), reads.size());
      asked += static_cast<int>(away.size() - fetched.size());
      read += static_cast<int>(fetched.size());
      away.resize(reads[away.size()]);
      EXPECT_EQ(fetched, away);
    }
  };
  std::vector<float> expected;
  for (int i = 0; i < 3; ++i) {  // from the second time on a graph
    asking.begin();
    EXPECT_EQ(asking.answer(0.25, 0, look), asking.layers());
    if (i == 0) expected = asking.hidden();
    EXPECT_TRUE(asking.hidden() == expected);
  }
  EXPECT_GT(asked, 0);
  EXPECT_GT(read, 0);
  EXPECT_TRUE(asking.device().fault());
}

// Experts that become resident and leave again (--expert-cache) are read where they are then.
TEST(GpuReads, FollowExpertsThatMove) {
  GPU_OR_SKIP();
  const TypedModel file = small_model(8);
  for (const bool foresees : {false, true}) {
    Asking asking(file.path(), 60, true, true);
    if (foresees) {
      ASSERT_TRUE(asking.device().foresee_experts());
    }
    std::vector<std::uint8_t> all(33);
    std::iota(all.begin(), all.end(), std::uint8_t{0});
    asking.device().divide_reads(all);
    std::vector<bool> resident(24);
    for (std::size_t e = 0; e < resident.size(); ++e) resident[e] = e % 2 == 0;
    const auto look = [&](int layer, std::span<const RoutedPair> pairs) {
      for (const RoutedPair& pair : pairs) {
        const bool here =
            layer == 1 ? resident[static_cast<std::size_t>(pair.expert)] : pair.expert % 2 == 0;
        EXPECT_NE(pair.fetched, here) << layer << ", " << pair.expert;
      }
    };
    asking.begin();
    asking.answer(99.0, 0, look);  // nobody waits for these
    const std::vector<float> expected = asking.hidden();
    for (const ExpertMove& move :
         {ExpertMove{.layer = 1, .expert = 1}, ExpertMove{.layer = 1, .expert = 3, .evicted = 1},
          ExpertMove{.layer = 1, .expert = 5, .evicted = 3},
          ExpertMove{.layer = 1, .expert = 1, .evicted = 5}}) {
      asking.device().begin_replace_expert(move);
      // Meanwhile steps go on, with neither of them there and both in pinned memory.
      if (move.evicted >= 0) resident[static_cast<std::size_t>(move.evicted)] = false;
      asking.begin();
      asking.answer(99.0, 0, look);
      EXPECT_TRUE(asking.hidden() == expected) << move.expert;
      ASSERT_TRUE(moved_in_time(asking.device()));
      resident[static_cast<std::size_t>(move.expert)] = true;
      asking.begin();
      asking.answer(99.0, 0, look);
      EXPECT_TRUE(asking.hidden() == expected) << move.expert;
    }
  }
}

// Experts come from the file, packed anew, as they come from pinned memory.
TEST(GpuMoves, BringTheSameFromTheFileAndFromPinnedMemory) {
  GPU_OR_SKIP();
  const TypedModel file = small_model(8);
  Asking unpinned(file.path(), 60), pinned(file.path(), 60, true, true);
  const auto steps_are_the_same = [&] {
    for (Asking* asking : {&unpinned, &pinned}) {
      asking->begin();
      asking->answer(0.25);
    }
    EXPECT_TRUE(unpinned.hidden() == pinned.hidden());
  };
  steps_are_the_same();
  int guest = -1;
  for (int expert = 1; expert < 24; expert += 2) {
    SCOPED_TRACE(expert);
    for (Asking* asking : {&unpinned, &pinned})
      asking->device().begin_replace_expert({.layer = 1, .expert = expert, .evicted = guest});
    steps_are_the_same();  // meanwhile
    ASSERT_TRUE(moved_in_time(unpinned.device()) && moved_in_time(pinned.device()));
    steps_are_the_same();
    guest = expert;
  }
  EXPECT_TRUE(unpinned.device().fault() && pinned.device().fault());
}

// One that ends while an expert is on its way to it waits for what reads it.
TEST(GpuMoves, MayBeLeft) {
  GPU_OR_SKIP();
  const TypedModel file = small_model(8);
  for (const bool in_pinned_memory : {false, true}) {
    Asking asking(file.path(), 60, true, in_pinned_memory);
    asking.begin();
    asking.answer(0.25);
    asking.device().begin_replace_expert({.layer = 1, .expert = 1});
  }
}

}  // namespace
}  // namespace tessera::testing
