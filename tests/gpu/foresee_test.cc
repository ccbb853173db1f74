// Experts that a step of few rows foresees for its next layer while the host computes this one's.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>

#include "tests/gpu/asking.h"
#include "tests/gpu/typed_model.h"

namespace tessera::testing {
namespace {

constexpr int kExperts = 24, kUsed = 8, kRows = 2;
constexpr double kSum = 1.0;  // so much that not all is foreseen

std::vector<float> tensor_row(const Model& model, TensorRole role, int layer, std::int64_t row) {
  const TensorSlice& slice = *model.find(role, layer);
  std::vector<float> out(static_cast<std::size_t>(slice.cols));
  dequantize_row(slice.type, slice.data + row * slice.row_stride, slice.cols, out.data());
  return out;
}

// What the router of layer `next` makes of a row that the experts of layer `at` read: the same
// residual under another norm.
std::vector<std::int32_t> expected_of(const Model& model, int at, int next, const float* row) {
  const std::vector<float> own = tensor_row(model, TensorRole::ffn_norm, at, 0);
  const std::vector<float> norm = tensor_row(model, TensorRole::ffn_norm, next, 0);
  std::vector<double> logits;
  for (int e = 0; e < kExperts; ++e) {
    const std::vector<float> weight = tensor_row(model, TensorRole::router, next, e);
    double sum = 0;
    for (std::size_t i = 0; i < own.size(); ++i)
      sum += double{weight[i]} * row[i] / own[i] * norm[i];
    logits.push_back(sum);
  }
  std::vector<std::int32_t> ids(kExperts);
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  ids.resize(kUsed);
  return ids;
}

// A row's experts that are away, and of them what it reads over the link: what was foreseen that it
// reads, then the lowest numbers.
struct Away {
  std::vector<std::int32_t> ids, read;
};
Away away_of(std::vector<std::int32_t> ids, std::span<const std::uint8_t> divided,
             std::span<const std::int32_t> foreseen) {
  Away away;
  std::erase_if(ids, [](std::int32_t e) { return e % 2 == 0; });  // resident
  std::sort(ids.begin(), ids.end());
  away.ids = away.read = ids;
  std::stable_partition(away.read.begin(), away.read.end(), [&](std::int32_t e) {
    return std::find(foreseen.begin(), foreseen.end(), e) != foreseen.end();
  });
  away.read.resize(divided[ids.size()]);
  std::sort(away.read.begin(), away.read.end());
  return away;
}

// The layer behind `layer` that lacks experts, where `whole` lacks none; -1 behind the last.
int next_asking(const Asking& asking, int layer, int whole) {
  const int next = layer + 1 == whole ? layer + 2 : layer + 1;
  return next < asking.layers() ? next : -1;
}

// Of those that are away and not read over the link, of the next layer that lacks some. With
// nothing read the step has the same bits.
class GpuForeseesBehind : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, GpuForeseesBehind, ::testing::Values(-1, 1));  // the layer that has all

TEST_P(GpuForeseesBehind, WhatTheNextRouterMakesOfTheRows) {
  GPU_OR_SKIP();
  const int whole = GetParam();
  const TypedModel file(
      "qwen35moe", BlockType::Q4_K,
      {"expert_count=" + std::to_string(kExperts), "expert_used_count=" + std::to_string(kUsed),
       whole < 0 ? "block_count=3" : "block_count=4"});
  for (const bool reads : {false, true}) {
    Asking plain(file.path(), 60, true, reads, whole);
    Asking asking(file.path(), 60, true, reads, whole);
    const std::vector<std::uint8_t> some = {0, 0, 1, 1, 2, 2, 3, 3, 4}, none(kUsed + 1, 0);
    const std::vector<std::uint8_t>& divided = reads ? some : none;
    plain.device().divide_reads(divided), asking.device().divide_reads(divided);
    EXPECT_EQ(plain.device().foreseen().layer, -1);
    ASSERT_TRUE(asking.device().foresee_experts());
    std::vector<std::int32_t> brought[kRows];  // of the next layer
    int preferred = 0;
    const auto look = [&](int layer, std::span<const RoutedPair> pairs) {
      for (int row = 0; row < kRows; ++row) {
        std::vector<std::int32_t> ids, fetched;
        for (const RoutedPair& pair : pairs) {
          if (pair.row == row) ids.push_back(pair.expert);
          if (pair.row == row && pair.fetched) fetched.push_back(pair.expert);
        }
        std::sort(fetched.begin(), fetched.end());
        if (layer == 0) brought[row].clear();
        const Away away = away_of(ids, divided, brought[row]);
        EXPECT_EQ(fetched, away.read) << "layer " << layer << ", row " << row;
        preferred += away.read != away_of(ids, divided, {}).read ? 1 : 0;
      }
    };
    const auto check = [&](int layer, const std::vector<float>& rows) {
      // The answers here are sooner than the kernels.
      ForeseenExperts next = asking.device().foreseen();
      const int expected_layer = next_asking(asking, layer, whole);
      for (int i = 0; i < 10000 && next.layer < 0 && expected_layer >= 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        next = asking.device().foreseen();
      }
      EXPECT_EQ(next.layer, expected_layer);
      if (next.layer < 0) return;
      std::vector<std::int32_t> expected;
      for (std::size_t row = 0; row < kRows; ++row) {
        const Away away = away_of(
            expected_of(asking.model(), layer, next.layer, rows.data() + row * rows.size() / kRows),
            divided, {});
        brought[row] = away.read;
        std::set_difference(away.ids.begin(), away.ids.end(), away.read.begin(), away.read.end(),
                            std::back_inserter(expected));
      }
      std::vector<std::int32_t> got(next.experts.begin(), next.experts.end());
      std::sort(got.begin(), got.end());
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(got, expected) << "layer " << next.layer;
    };
    for (int i = 0; i < 3; ++i) {  // from the second time on a graph
      plain.begin();
      plain.answer(kSum);
      asking.begin();
      EXPECT_EQ(asking.answer(kSum, 0, look, check), asking.layers());
      if (!reads) {
        EXPECT_TRUE(asking.hidden() == plain.hidden());
      }
      EXPECT_EQ(asking.device().foreseen().layer, -1);
    }
    EXPECT_TRUE(asking.device().fault());
    EXPECT_EQ(preferred > 0, reads);
  }
}

// What was brought ahead has the bits of what is read where it lies, and there is more of it than
// places for it. A step that nobody answers leaves nothing behind.
TEST_P(GpuForeseesBehind, WhatIsBroughtHasTheSameBits) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K,
                        {"expert_count=" + std::to_string(kExperts), "expert_used_count=8",
                         GetParam() < 0 ? "block_count=3" : "block_count=4"});
  std::vector<std::uint8_t> all(33);
  std::iota(all.begin(), all.end(), std::uint8_t{0});
  std::vector<float> expected;
  for (const bool foresees : {false, true})
    for (const bool graphs : {true, false}) {
      Asking asking(file.path(), 60, graphs, true, GetParam());
      asking.device().divide_reads(all);
      if (foresees) {
        ASSERT_TRUE(asking.device().foresee_experts());
      }
      for (int i = 0; i < 4; ++i) {
        asking.begin();
        if (i == 2) {
          EXPECT_EQ(asking.device().next_post(), 0);  // and then it is given up
          continue;
        }
        EXPECT_EQ(asking.answer(99.0), asking.layers());  // nobody waits for these
        if (expected.empty()) expected = asking.hidden();
        EXPECT_TRUE(asking.hidden() == expected) << foresees << graphs << i;
      }
      EXPECT_EQ(asking.device().streamed().ahead > 0, foresees);
      const Status fault = asking.device().fault();
      EXPECT_TRUE(fault) << fault.error().message;
    }
}

// A layer with all of its experts asks for nothing, waits for nothing and is not foreseen; launched
// as a whole and piece by piece it gives the same bits.
TEST(GpuForesees, NothingOfALayerThatHasAll) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K,
                        {"expert_count=" + std::to_string(kExperts),
                         "expert_used_count=" + std::to_string(kUsed), "block_count=4"});
  for (const bool streamed : {false, true}) {
    Asking graphs(file.path(), 60, true, streamed, 1), pieces(file.path(), 60, false, streamed, 1);
    for (Asking* asking : {&graphs, &pieces}) ASSERT_TRUE(asking->device().foresee_experts());
    std::vector<float> expected;
    for (int i = 0; i < 3; ++i)
      for (Asking* asking : {&graphs, &pieces}) {
        std::vector<int> asked;
        const auto look = [&](int layer, std::span<const RoutedPair>) { asked.push_back(layer); };
        const auto check = [&](int layer, const std::vector<float>&) {
          const int next = asking->device().foreseen().layer;
          EXPECT_TRUE(next < 0 || next == next_asking(*asking, layer, 1)) << next;
        };
        asking->begin();
        asking->answer(0.25, 0, look, check);
        EXPECT_EQ(asked, (std::vector<int>{0, 2, 3}));
        if (expected.empty()) expected = asking->hidden();
        EXPECT_TRUE(asking->hidden() == expected);
        EXPECT_TRUE(asking->device().fault());
      }
  }
}

// A step that is counted is several programs, one of which begins what the next one joins: no
// graph, the same experts over the link, the same bits; also where one is given up in between.
TEST(GpuForesees, ACountedStepHasTheBitsOfOthers) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K,
                        {"expert_count=" + std::to_string(kExperts),
                         "expert_used_count=" + std::to_string(kUsed), "block_count=5"});
  const std::vector<std::uint8_t> divided = {0, 0, 1, 1, 2, 2, 3, 3, 4};
  for (const int whole : {1, 2})
    for (const bool graphs : {true, false}) {
      Asking asking(file.path(), 60, graphs, true, whole);
      asking.device().divide_reads(divided);
      ASSERT_TRUE(asking.device().foresee_experts());
      std::vector<float> expected;
      for (int i = 0; i < 9; ++i) {
        int answered = 0;
        asking.begin(i % 3 == 0 ? std::function<void()>{}
                                : [&] { answered = asking.answer(kSum, answered); });
        if (i == 4) continue;
        EXPECT_EQ(asking.answer(kSum, answered), asking.layers());
        if (expected.empty()) expected = asking.hidden();
        EXPECT_TRUE(asking.hidden() == expected) << whole << graphs << i;
        const Status fault = asking.device().fault();
        ASSERT_TRUE(fault) << fault.error().message;
      }
    }
}

}  // namespace
}  // namespace tessera::testing
