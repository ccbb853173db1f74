#include "plan/expert_placement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace tessera {
namespace {

ExpertLayerLoad uniform(int experts, int used, std::int64_t bytes) {
  return {.chance = std::vector<double>(static_cast<std::size_t>(experts),
                                        static_cast<double>(used) / experts),
          .expert_bytes = bytes,
          .floor = used};
}

std::vector<double> zipf(int experts, int used, double exponent, unsigned seed) {
  std::vector<double> chance;
  for (int e = 0; e < experts; ++e) chance.push_back(std::pow(e + 1.0, -exponent));
  const double sum = std::accumulate(chance.begin(), chance.end(), 0.0);
  for (double& c : chance) c = std::min(1.0, used * c / sum);
  std::mt19937 random(seed);
  std::shuffle(chance.begin(), chance.end(), random);
  return chance;
}

std::int64_t bytes_of(const ExpertLoad& load, const std::vector<int>& residents) {
  std::int64_t bytes = 0;
  for (std::size_t l = 0; l < residents.size(); ++l)
    bytes += residents[l] * load.layers[l].expert_bytes;
  return bytes;
}

double cost_of(const ExpertLoad& load, const std::vector<int>& residents) {
  double cost = 0.0;
  for (std::size_t l = 0; l < residents.size(); ++l)
    cost += layer_cost(load.layers[l], load.costs, residents[l]);
  return cost;
}

TEST(ExpertPlacement, ACostlyCallFillsLayersOneAfterAnother) {
  ExpertLoad load{.layers = std::vector<ExpertLayerLoad>(10, uniform(256, 8, 1000)),
                  .costs = {{.call_s = 1e-3, .bytes_per_s = 1e12}}};
  const auto residents = residents_within(load, 10 * 128 * 1000);
  ASSERT_TRUE(residents);
  EXPECT_EQ(std::count(residents->begin(), residents->end(), 256), 4);
  EXPECT_EQ(std::count(residents->begin(), residents->end(), 8), 5);
  EXPECT_LE(bytes_of(load, *residents), 10 * 128 * 1000);
  EXPECT_GT(bytes_of(load, *residents), (10 * 128 - 1) * 1000);
}

// Of layers that gain about as much a byte, as those of two types in one file do, those that become
// whole are in turns with the others; one that gains more comes before them, wherever it is.
TEST(ExpertPlacement, WholeLayersAreInTurnsWithOthers) {
  constexpr std::int64_t kOdd = 2'040'000, kEven = 1'770'000, kSmall = 500'000;
  ExpertLoad load{.costs = {{.call_s = 30e-6, .bytes_per_s = 100e9}}};
  for (int l = 0; l < 20; ++l) load.layers.push_back(uniform(256, 8, l % 2 == 0 ? kEven : kOdd));
  load.layers[17].expert_bytes = kSmall;
  for (ExpertLayerLoad& layer : load.layers) layer.floor = 0;
  const auto whole = [&](int small, int odd, int even) {
    std::string layers;
    const auto residents =
        residents_within(load, 256 * (small * kSmall + odd * kOdd + even * kEven));
    if (!residents) return std::string("no room");
    for (const int n : *residents) layers += n == 256 ? 'w' : n > 0 ? 'p' : '-';
    return layers;
  };
  EXPECT_EQ(whole(0, 0, 0), "--------------------");
  EXPECT_EQ(whole(1, 0, 0), "-----------------w--");
  EXPECT_EQ(whole(1, 1, 0), "---------w-------w--");
  EXPECT_EQ(whole(1, 1, 1), "------w------w---w--");
  EXPECT_EQ(whole(1, 8, 2), "ww-w-w-w-w-w-w-w-ww-");
  EXPECT_EQ(whole(1, 8, 6), "wwwwwwwwww-w-w-w-ww-");
  EXPECT_EQ(whole(1, 9, 10), "wwwwwwwwwwwwwwwwwwww");
}

TEST(ExpertPlacement, CheapCallsPutTheLikeliestExpertsInFirst) {
  ExpertLoad load{.costs = {{.call_s = 0.0, .bytes_per_s = 1e9}}};
  for (unsigned l = 0; l < 8; ++l)
    load.layers.push_back({.chance = zipf(64, 4, 1.2, l), .expert_bytes = 1000, .floor = 4});
  const auto residents = residents_within(load, 8 * 32 * 1000);
  ASSERT_TRUE(residents);
  for (const int n : *residents) EXPECT_EQ(n, 32);  // the layers differ in their order only
}

// A worker that is far away and reads fast, beside a host that is near and slow.
TEST(ExpertPlacement, ALayerCostsWhatTheCheapestTakes) {
  const ExpertLayerLoad layer = uniform(64, 8, 1'000'000);
  const ExpertCosts host{.call_s = 1e-6, .bytes_per_s = 1e10};
  const ExpertCosts worker{.call_s = 4e-4, .bytes_per_s = 1e11};
  for (int n = 0; n <= 64; ++n) {
    const double here = layer_cost(layer, {{host}}, n), there = layer_cost(layer, {{worker}}, n);
    EXPECT_EQ(layer_cost(layer, {{host, worker}}, n), std::min(here, there)) << n;
  }
  EXPECT_LT(layer_cost(layer, {{worker}}, 0), layer_cost(layer, {{host}}, 0));
  EXPECT_LT(layer_cost(layer, {{host}}, 60), layer_cost(layer, {{worker}}, 60));
}

TEST(ExpertPlacement, TheFloorIsTheLeast) {
  ExpertLoad load{.layers = std::vector<ExpertLayerLoad>(3, uniform(16, 4, 100))};
  EXPECT_FALSE(residents_within(load, 3 * 4 * 100 - 1));
  const auto floor = residents_within(load, 3 * 4 * 100);
  ASSERT_TRUE(floor);
  EXPECT_EQ(*floor, (std::vector<int>{4, 4, 4}));
  EXPECT_EQ(*residents_within(load, 1 << 20), (std::vector<int>{16, 16, 16}));
}

// Against every other choice, where there are few enough of them: within the bytes of one expert a
// layer, which is what the hull may leave out.
TEST(ExpertPlacement, IsAboutTheCheapestChoice) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    ExpertLoad load{
        .costs = {{.call_s = 1e-6 * static_cast<double>(random() % 30), .bytes_per_s = 1e9}}};
    if (round % 2 == 1)
      load.costs.push_back(
          {.call_s = 1e-6 * static_cast<double>(random() % 60), .bytes_per_s = 4e9});
    for (unsigned l = 0; l < 3; ++l)
      load.layers.push_back({.chance = zipf(8, 2, 0.5 + 0.2 * static_cast<double>(random() % 6),
                                            static_cast<unsigned>(random())),
                             .expert_bytes = 1000,
                             .floor = 1});
    const std::int64_t budget = 1000 * (3 + static_cast<int>(random() % 21));
    const auto chosen = residents_within(load, budget);
    ASSERT_TRUE(chosen);
    ASSERT_LE(bytes_of(load, *chosen), budget);
    double best_with_less = 1e9;  // an expert a layer less to spend
    for (int a = 1; a <= 8; ++a)
      for (int b = 1; b <= 8; ++b)
        for (int c = 1; c <= 8; ++c)
          if (bytes_of(load, {a, b, c}) <= std::max<std::int64_t>(3000, budget - 8000))
            best_with_less = std::min(best_with_less, cost_of(load, {a, b, c}));
    EXPECT_LE(cost_of(load, *chosen), best_with_less + 1e-12) << round;
  }
}

TEST(ExpertPlacement, AProfileLeavesFewerPairsAway) {
  constexpr std::int64_t kExpertBytes = 1904640;
  ExpertLoad known, blind;
  for (unsigned l = 0; l < 40; ++l) {
    known.layers.push_back(
        {.chance = zipf(256, 8, 1.0, l), .expert_bytes = kExpertBytes, .floor = 8});
    blind.layers.push_back(uniform(256, 8, kExpertBytes));
  }
  const auto with_profile = residents_within(known, 40 * 128 * kExpertBytes);
  ASSERT_TRUE(with_profile);
  EXPECT_LT(cold_share(known, *with_profile), 0.25);
  EXPECT_NEAR(cold_share(blind, residents_by_percent(blind, 50)), 0.5, 1e-9);
}

TEST(ExpertPlacement, RoomForGuestsIsPlacesOfEachLayerOrBytesOfAll) {
  ExpertLoad load{.layers = {uniform(8, 2, 1000), {}, uniform(4, 2, 3000), uniform(8, 2, 1000)}};
  EXPECT_EQ(spare_places(load, {}), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(spare_places(load, {.places = 5}), (std::vector<int>{5, 0, 4, 5}));
  EXPECT_EQ(spare_places(load, {.bytes = 999}), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(spare_places(load, {.bytes = 5000}), (std::vector<int>{1, 0, 1, 1}));
  EXPECT_EQ(spare_places(load, {.bytes = 7999}), (std::vector<int>{2, 0, 1, 2}));
  EXPECT_EQ(spare_places(load, {.bytes = 1 << 30}), (std::vector<int>{8, 0, 4, 8}));
}

TEST(ExpertPlacement, WorkersShareALayerUntilTheyAreFull) {
  const ExpertLayerLoad layer = uniform(12, 2, 100);
  std::vector<std::int64_t> room = {400, 300};
  const std::vector<ExpertWorker> workers = {{400, 1.0}, {300, 1.0}};
  const std::vector<ExpertHome> homes = homes_of(layer, 3, workers, room);
  EXPECT_EQ(std::count(homes.begin(), homes.end(), ExpertHome::resident()), 3);
  EXPECT_EQ(std::count(homes.begin(), homes.end(), ExpertHome::worker(0)), 4);
  EXPECT_EQ(std::count(homes.begin(), homes.end(), ExpertHome::worker(1)), 3);
  EXPECT_EQ(std::count(homes.begin(), homes.end(), ExpertHome::host()), 2);
  EXPECT_EQ(room, (std::vector<std::int64_t>{0, 0}));
  std::vector<std::int64_t> wide = {1 << 20, 1 << 20};
  const std::vector<ExpertWorker> unequal = {{1 << 20, 3.0}, {1 << 20, 1.0}};
  const std::vector<ExpertHome> shared = homes_of(layer, 0, unequal, wide);
  EXPECT_EQ(std::count(shared.begin(), shared.end(), ExpertHome::worker(0)), 9);
}

// Where calls cost nothing every step gains as much, but for rounding.
TEST(ExpertPlacement, StaysWithinABudgetWhereAllStepsGainAlike) {
  ExpertLayerLoad layer{.expert_bytes = 1000, .floor = 8};
  layer.chance.assign(256, 8.0 / 256.0);
  const ExpertLoad load{.layers = {layer, layer, layer, layer},
                        .costs = {{.call_s = 0.0, .bytes_per_s = 1e9}}};
  for (const int experts : {32, 100, 500, 700, 1000, 1024}) {
    const auto residents = residents_within(load, experts * 1000);
    ASSERT_TRUE(residents);
    EXPECT_EQ(std::accumulate(residents->begin(), residents->end(), 0), experts);
  }
}

}  // namespace
}  // namespace tessera
