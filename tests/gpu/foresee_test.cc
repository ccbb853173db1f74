// Experts that a step of few rows foresees for its next layer while the host computes this one's.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>

#include "tests/gpu/asking.h"
#include "tests/gpu/typed_model.h"

namespace tessera::testing {
namespace {

constexpr int kExperts = 24, kUsed = 5, kRows = 2;

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

// Of those that are away and not read over the link; the step has the same bits.
TEST(GpuForesees, WhatTheNextRouterMakesOfTheRows) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K,
                        {"expert_count=" + std::to_string(kExperts),
                         "expert_used_count=" + std::to_string(kUsed), "block_count=3"});
  for (const bool reads : {false, true}) {
    Asking plain(file.path(), 60, true, reads), asking(file.path(), 60, true, reads);
    const std::vector<std::uint8_t> divided = {0, 0, 1, 1, 2, 2};
    if (reads) plain.device().divide_reads(divided), asking.device().divide_reads(divided);
    EXPECT_EQ(plain.device().foreseen().layer, -1);
    ASSERT_TRUE(asking.device().foresee_experts());
    const auto check = [&](int layer, const std::vector<float>& rows) {
      // The answers here are sooner than the kernels.
      ForeseenExperts next = asking.device().foreseen();
      for (int i = 0; i < 10000 && next.layer < 0 && layer + 1 < asking.layers(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        next = asking.device().foreseen();
      }
      EXPECT_EQ(next.layer, layer + 1 < asking.layers() ? layer + 1 : -1);
      if (next.layer < 0) return;
      std::vector<std::int32_t> expected;
      for (std::size_t row = 0; row < kRows; ++row) {
        std::vector<std::int32_t> away =
            expected_of(asking.model(), layer, next.layer, rows.data() + row * rows.size() / kRows);
        std::erase_if(away, [](std::int32_t e) { return e % 2 == 0; });  // resident
        std::sort(away.begin(), away.end());
        const std::size_t read = reads ? divided[away.size()] : 0;
        expected.insert(expected.end(), away.begin() + static_cast<std::ptrdiff_t>(read),
                        away.end());
      }
      std::vector<std::int32_t> got(next.experts.begin(), next.experts.end());
      std::sort(got.begin(), got.end());
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(got, expected) << "layer " << next.layer;
    };
    for (int i = 0; i < 3; ++i) {  // from the second time on a graph
      plain.begin();
      plain.answer(0.25);
      asking.begin();
      EXPECT_EQ(asking.answer(0.25, 0, {}, check), asking.layers());
      EXPECT_TRUE(asking.hidden() == plain.hidden());
      EXPECT_EQ(asking.device().foreseen().layer, -1);
    }
    EXPECT_TRUE(asking.device().fault());
  }
}

// A layer with all of its experts asks for nothing, waits for nothing and is not foreseen, nor is
// the one behind it; launched as a whole and piece by piece it gives the same bits.
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
          if (layer != 2) {
            EXPECT_EQ(asking->device().foreseen().layer, -1);
          }
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

}  // namespace
}  // namespace tessera::testing
