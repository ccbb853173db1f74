#include "plan/layer_cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace tessera {
namespace {

using Ends = std::vector<int>;

ModelSpec layers(int n) {
  ModelSpec spec;
  spec.layers.resize(static_cast<std::size_t>(n));
  return spec;
}

TEST(LayerCuts, FollowTheWeights) {
  const struct {
    int layers;
    std::vector<double> weights;
    Ends ends;
  } cases[] = {
      {40, {1, 1}, {20, 40}},
      {64, {1, 3}, {16, 64}},
      {43, {24, 19}, {24, 43}},
      {40, {100, 1}, {39, 40}},
      {3, {1, 1, 1}, {1, 2, 3}},
      {40, {1, 100}, {1, 40}},
      {5, {1, 1}, {3, 5}},
      {40, {1e-300, 1, 1e300}, {1, 2, 40}},
      {10, {1e308, 1e308}, {5, 10}},
      {4, {1000, 1, 1, 1}, {1, 2, 3, 4}},
      {1, {7}, {1}},
  };
  for (const auto& [n, weights, ends] : cases) {
    const Result<Ends> got = ends_by_weights(n, weights);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, ends) << n;
  }
}

TEST(LayerCuts, RefuseWhatCannotBe) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<double> cases[] = {{}, {1, 1, 1, 1}, {1, 0}, {1, -1}, {nan, 1}, {1, infinite}};
  for (const std::vector<double>& weights : cases) {
    const Result<Ends> got = ends_by_weights(3, weights);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, ErrorCode::invalid);
  }
}

TEST(LayerCuts, LayersThatShareKvStayTogether) {
  ModelSpec spec = layers(10);
  for (auto& layer : spec.layers) layer.mixer = AttentionSpec{};
  for (const std::size_t user : {7u, 8u, 9u})
    std::get<AttentionSpec>(spec.layers[user].mixer).kv_source = 6;
  const std::vector<bool> legal = legal_cuts(spec);
  for (int cut = 0; cut <= 10; ++cut)
    EXPECT_EQ(legal[static_cast<std::size_t>(cut)], cut < 7 || cut == 10) << cut;

  // Each cut goes to the nearest legal place and every shard keeps a layer.
  EXPECT_EQ(best_ends(legal, 2, nearest_to({8, 10})), Ends({6, 10}));
  EXPECT_EQ(best_ends(legal, 3, nearest_to({7, 8, 10})), Ends({5, 6, 10}));
  EXPECT_EQ(best_ends(legal, 3, nearest_to({3, 9, 10})), Ends({3, 6, 10}));
  EXPECT_EQ(best_ends(legal, 7, nearest_to({2, 4, 6, 7, 8, 9, 10})), Ends({1, 2, 3, 4, 5, 6, 10}));
  EXPECT_EQ(best_ends(legal, 8, nearest_to({1, 2, 3, 4, 5, 6, 7, 10})), std::nullopt);
}

TEST(LayerCuts, KeepLegalWishes) {
  const std::vector<bool> legal = legal_cuts(layers(40));
  for (const Ends& ends : {Ends{20, 40}, Ends{1, 40}, Ends{39, 40}, Ends{13, 14, 40}})
    EXPECT_EQ(best_ends(legal, static_cast<int>(ends.size()), nearest_to(ends)), ends);
}

TEST(LayerCuts, TheLeastCostWins) {
  const std::vector<bool> legal = legal_cuts(layers(12));
  const std::vector<int> cost_of = {1, 1, 1, 1, 9, 1, 1, 1, 1, 1, 1, 1};
  const auto cost = [&](int, LayerRange layers) -> std::optional<double> {
    double sum = 0.0;
    for (int l = layers.begin; l < layers.end; ++l) sum += cost_of[static_cast<std::size_t>(l)];
    return std::pow(sum, 8.0);
  };
  EXPECT_EQ(best_ends(legal, 2, cost), Ends({5, 12}));
  EXPECT_EQ(best_ends(legal, 3, cost), Ends({4, 5, 12}));
  // Where the third shard may have no more than two layers.
  const auto bounded = [&](int shard, LayerRange layers) -> std::optional<double> {
    if (shard == 2 && layers.size() > 2) return std::nullopt;
    return cost(shard, layers);
  };
  EXPECT_EQ(best_ends(legal, 3, bounded), Ends({5, 10, 12}));
  const auto never = [](int, LayerRange) { return std::optional<double>(); };
  EXPECT_EQ(best_ends(legal, 2, never), std::nullopt);
}

// Every split of few layers, tried one by one.
double least_time(const std::vector<bool>& legal, int n_shard, const RangeTime& time,
                  double ratio) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> ends(static_cast<std::size_t>(n_shard));
  const int n = static_cast<int>(legal.size()) - 1;
  const std::function<void(int, int, double, double)> walk = [&](int shard, int begin,
                                                                 double slowest, double tokens) {
    if (shard == n_shard) {
      if (begin == n) best = std::min(best, ratio * slowest + tokens);
      return;
    }
    for (int end = begin + 1; end <= n; ++end) {
      const auto range = time(shard, {begin, end});
      if (legal[static_cast<std::size_t>(end)] && range)
        walk(shard + 1, end, std::max(slowest, range->prompt_row_s), tokens + range->token_s);
    }
  };
  walk(0, 0, 0.0, 0.0);
  return best;
}

TEST(LayerCuts, TheFastestIsAsFastAsAny) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> any(0.1, 1.0);
  for (int round = 0; round < 200; ++round) {
    const int n = 3 + static_cast<int>(random() % 7), shards = 1 + static_cast<int>(random() % 3);
    std::vector<bool> legal(static_cast<std::size_t>(n) + 1, true);
    for (std::size_t i = 1; i < legal.size() - 1; ++i) legal[i] = random() % 5 != 0;
    std::vector<StepTime> each;
    for (int l = 0; l < n; ++l) each.push_back({any(random), any(random)});
    std::vector<StepTime> slow;  // a device each
    for (int s = 0; s < shards; ++s) slow.push_back({any(random), any(random)});
    const int most = 2 + static_cast<int>(random() % 8);
    const RangeTime time = [&](int shard, LayerRange layers) -> std::optional<StepTime> {
      if (layers.size() > most) return std::nullopt;
      StepTime sum;
      for (int l = layers.begin; l < layers.end; ++l) sum += each[static_cast<std::size_t>(l)];
      const StepTime& factor = slow[static_cast<std::size_t>(shard)];
      return StepTime{sum.prompt_row_s * factor.prompt_row_s, sum.token_s * factor.token_s};
    };
    const double ratio = 8.0 * any(random);
    const auto ends = fastest_ends(legal, shards, time, ratio);
    const double best = least_time(legal, shards, time, ratio);
    ASSERT_EQ(ends.has_value(), std::isfinite(best)) << round;
    if (!ends) continue;
    StepTime all;
    int shard = 0;
    for (const LayerRange layers : ranges_of(*ends)) {
      const auto range = time(shard++, layers);
      ASSERT_TRUE(range);
      all.prompt_row_s = std::max(all.prompt_row_s, range->prompt_row_s);
      all.token_s += range->token_s;
    }
    EXPECT_NEAR(ratio * all.prompt_row_s + all.token_s, best, 1e-4 * best) << round;
  }
}

TEST(LayerCuts, OfEqualSplitsTheMostEvenOne) {
  const std::vector<bool> legal(11, true);
  const auto ends = fastest_ends(
      legal, 4,
      [](int, LayerRange layers) {
        return StepTime{layers.size() + 0.0, layers.size() + 0.0};
      },
      8.0);
  ASSERT_TRUE(ends);
  for (const LayerRange layers : ranges_of(*ends)) {
    EXPECT_GE(layers.size(), 2);  // not 3, 3, 3, 1
    EXPECT_LE(layers.size(), 3);
  }
}

}  // namespace
}  // namespace tessera
