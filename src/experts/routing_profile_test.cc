#include "experts/routing_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "experts/expert_cache.h"
#include "experts/routing_counts.h"

namespace tessera {
namespace {

ModelSpec profiled_spec(int experts = 4, int used = 2) {
  ModelSpec spec;
  spec.layers.resize(3);
  spec.layers[0].moe = MoeSpec{.n_expert = experts, .n_used = used};
  spec.layers[2].moe = MoeSpec{.n_expert = experts, .n_used = used};
  return spec;
}

TEST(RoutingProfile, WritesWhatItReads) {
  const std::filesystem::path folder = ::testing::TempDir() + "routing_profile_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder / "profile.csv";
  RoutingProfile profile(profiled_spec(), "abc123");
  profile.add({.layer = 0, .expert = 1}, 3);
  profile.add({.layer = 2, .expert = 3}, 0.25);
  ASSERT_TRUE(profile.write(path));
  const Result<RoutingProfile> read = RoutingProfile::read(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->counts(), profile.counts());
  EXPECT_EQ(read->text(), profile.text());
  EXPECT_TRUE(read->check(profiled_spec(), "abc123"));
  const Status other = read->check(profiled_spec(), "abd");
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("another model"), std::string::npos);
  EXPECT_FALSE(read->check(profiled_spec(8), "abc123"));
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_EQ(entry.path(), path) << "a half-written file was left";
  const Status nowhere = profile.write(folder / "nobody_made_this" / "profile.csv");
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::io);
  EXPECT_FALSE(profile.write(folder)) << "a folder would be replaced";
  EXPECT_TRUE(std::filesystem::is_directory(folder));
  EXPECT_FALSE(RoutingProfile::read(folder));
  std::filesystem::remove_all(folder);
}

TEST(RoutingProfile, ReadsTheSimpleForm) {
  const Result<RoutingProfile> profile = RoutingProfile::parse(
      "# hotness table: n_layer=3 n_expert=4 n_expert_used=2\n"
      "# one row per layer\n1,2,3,4\n0,0,0,0\r\n5,6,7,8");
  ASSERT_TRUE(profile) << profile.error().message;
  EXPECT_EQ(profile->counts()[2][3], 8.0);
  EXPECT_TRUE(profile->check(profiled_spec(), "any model"));
}

TEST(RoutingProfile, RefusesWhatIsNone) {
  const std::string head = "# hotness table: n_layer=1 n_expert=2 n_expert_used=1\n";
  const std::pair<std::string, const char*> cases[] = {
      {"", "line 1"},
      {"1,2\n", "line 1"},
      {"# hotness table: n_layer=1 n_expert=99999999 n_expert_used=1\n1,2\n", "line 1"},
      {"# hotness table: n_layer=-1 n_expert=2 n_expert_used=1\n", "line 1"},
      {head + "1,2\n3,4\n", "2 layers"},
      {head, "0 layers"},
      {head + "1\n", "line 2: 1 counts"},
      {head + "1,x\n", "line 2: 'x'"},
      {head + "1,-1\n", "line 2: '-1'"},
      {head + "1,nan\n", "line 2: 'nan'"},
      {head + "1,inf\n", "line 2: 'inf'"},
      {head + "1,1e308\n", "line 2: '1e308' is more than was ever counted; 4294967296 is most"},
      {head + "99999999999999999999999,1\n", "line 2: '99999999999999999999999' is more"},
      {head + "1,4294967297\n", "line 2: '4294967297' is more"},
      {head + "1,1e400\n", "line 2: '1e400'"},
      {head + "1,\n", "line 2: ''"},
      {head + "1,2,3\n", "line 2: 3 counts"},
  };
  for (const auto& [text, part] : cases) {
    const Result<RoutingProfile> profile = RoutingProfile::parse(text);
    ASSERT_FALSE(profile) << text;
    EXPECT_EQ(profile.error().code, ErrorCode::invalid);
    EXPECT_NE(profile.error().message.find(part), std::string::npos) << profile.error().message;
  }
}

TEST(RoutingCounts, AgesByTheRowsThatPassed) {
  RoutingCounts counts(profiled_spec());
  RoutingProfile profile(profiled_spec(), "");
  profile.add({.layer = 0, .expert = 0}, 100);
  std::vector<RoutedPair> pairs;
  for (int row = 0; row < 50; ++row) {
    pairs.push_back({.row = row, .expert = 1});
    pairs.push_back({.row = row, .expert = 2});
  }
  counts.add(0, pairs);
  counts.add(1, pairs);  // a layer without experts
  EXPECT_EQ(counts.take(profile, 50.0), 50.0);
  EXPECT_NEAR(profile.counts()[0][0], 50.0, 1e-9);
  EXPECT_EQ(profile.counts()[0][1], 50.0);
  EXPECT_EQ(counts.take(profile, 50.0), 0.0);
  EXPECT_NEAR(profile.counts()[0][0], 50.0, 1e-9);
}

// Of layers that another process has, counts come in other portions.
TEST(RoutingCounts, EachLayerAgesByItsOwnRows) {
  RoutingCounts counts(profiled_spec());
  RoutingProfile profile(profiled_spec(), "");
  for (const int layer : {0, 2}) profile.add({.layer = layer, .expert = 0}, 100);
  const std::vector<std::uint32_t> many = {0, 50, 50, 0}, few = {0, 25, 25, 0};
  counts.add(0, many);
  counts.add(2, few);
  EXPECT_EQ(counts.take(profile, 50.0), 50.0);
  counts.add(2, few);
  EXPECT_EQ(counts.take(profile, 50.0), 25.0);
  for (const int layer : {0, 2})
    EXPECT_NEAR(profile.counts()[static_cast<std::size_t>(layer)][0], 50.0, 1e-9) << layer;
}

// What counting and ageing make of any profile that was read is read again: of the largest counts,
// and of the smallest fractions before they are forgotten.
TEST(RoutingCounts, WhatAgeingWritesIsReadAgain) {
  constexpr int kRows = 1000;
  const std::string most = fmt::format("{:.0f}", RoutingProfile::kMostCount);
  Result<RoutingProfile> profile =
      RoutingProfile::parse("# hotness table: n_layer=3 n_expert=4 n_expert_used=2\n" + most +
                            ",1.5,0.002,0\n-\n" + most + "," + most + ",1,0\n");
  ASSERT_TRUE(profile) << profile.error().message;
  RoutingCounts counts(profiled_spec());
  std::vector<RoutedPair> pairs;
  for (int row = 0; row < kRows; ++row) {
    pairs.push_back({.row = row, .expert = 0});
    pairs.push_back({.row = row, .expert = 1});
  }
  bool fractions = false;
  for (int step = 0; step < 60; ++step) {
    for (const int layer : {0, 2}) counts.add(layer, pairs);
    ASSERT_EQ(counts.take(*profile, kRows), kRows);
    const double small = profile->counts()[0][2];
    fractions = fractions || (small > 0.0 && small < 0.0019);
    Result<RoutingProfile> read = RoutingProfile::parse(profile->text());
    ASSERT_TRUE(read) << read.error().message;
    profile = std::move(read);
  }
  EXPECT_TRUE(fractions);
  EXPECT_NEAR(profile->counts()[0][0], 2.0 * kRows, 1.0) << "it never recovers";
}

TEST(ProfileKeeper, WritesBesideTheRequests) {
  const std::string path = ::testing::TempDir() + "profile_keeper_test.csv";
  std::filesystem::remove(path);
  RoutingCounts counts(profiled_spec());
  const RoutedPair pair{.row = 0, .expert = 3};
  {
    ProfileKeeper keeper(counts, RoutingProfile(profiled_spec(), "abc"),
                         {.path = path, .every = std::chrono::milliseconds(5)});
    EXPECT_FALSE(std::filesystem::exists(path));
    counts.add(2, {&pair, 1});
    for (int i = 0; i < 2000 && !std::filesystem::exists(path); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(std::filesystem::exists(path));
    counts.add(2, {&pair, 1});
  }
  const Result<RoutingProfile> read = RoutingProfile::read(path);
  ASSERT_TRUE(read);
  EXPECT_NEAR(read->counts()[2][3], 2.0, 1e-4);
  std::filesystem::remove(path);
}

TEST(ProfileKeeper, CountsWhatItCannotWrite) {
  MetricsRegistry metrics;
  Counter& failures = profile_failures(metrics);
  RoutingCounts counts(profiled_spec());
  const RoutedPair pair{.row = 0, .expert = 3};
  ProfileKeeper keeper(counts, RoutingProfile(profiled_spec(), "abc"),
                       {.path = ::testing::TempDir() + "no/such/folder/profile.csv",
                        .every = std::chrono::hours(1),
                        .failures = &failures});
  EXPECT_TRUE(keeper.flush());
  EXPECT_EQ(failures.value(), 0u) << "there is nothing to write";
  counts.add(2, {&pair, 1});
  EXPECT_FALSE(keeper.flush());
  EXPECT_FALSE(keeper.flush());
  EXPECT_EQ(failures.value(), 2u);
}

// --- The cache ---

ExpertTable table_of(int experts, int resident, int spare) {
  ShardLayout layout;
  layout.end_layer = 1;
  LayerExperts& layer = layout.experts.emplace_back();
  for (int e = 0; e < experts; ++e)
    layer.home.push_back(e < resident ? ExpertHome::resident() : ExpertHome::host());
  layer.spare = spare;
  return ExpertTable(layout);
}

void choose(ExpertCache& cache, std::vector<int> experts) {
  std::vector<RoutedPair> pairs;
  for (const int expert : experts) pairs.push_back({.row = 0, .expert = expert});
  cache.observe(0, pairs);
}

TEST(ExpertCache, AdmitsAtTheSecondChoiceNeverAtTheFirst) {
  ExpertTable table = table_of(8, 2, 1);
  ExpertCache cache(table, {});
  choose(cache, {0, 5});
  EXPECT_FALSE(cache.next());
  choose(cache, {1, 5});
  const std::optional<ExpertMove> move = cache.next();
  ASSERT_TRUE(move);
  EXPECT_EQ(move->expert, 5);
  EXPECT_EQ(move->evicted, -1);
  cache.begin(*move);
  cache.done(*move);
  EXPECT_TRUE(table.layer(0).home(5).is_resident());
  EXPECT_FALSE(cache.next());
  choose(cache, {5, 0});
  EXPECT_EQ(cache.hits(), 1);
}

TEST(ExpertCache, AGuestGivesWayToAnExpertThatIsWantedClearlyMore) {
  ExpertTable table = table_of(8, 2, 1);
  ExpertCache cache(table, {.window_rows = 1000});
  for (int i = 0; i < 4; ++i) choose(cache, {0, 5});
  const auto second = cache.next();
  cache.begin(*second);
  cache.done(*second);
  for (int i = 0; i < 6; ++i) choose(cache, {0, 6});
  EXPECT_FALSE(cache.next());  // 6 is not 1.5 times more than 4
  choose(cache, {0, 6});
  const std::optional<ExpertMove> move = cache.next();
  ASSERT_TRUE(move);
  EXPECT_EQ(move->expert, 6);
  EXPECT_EQ(move->evicted, 5);
  cache.begin(*move);
  cache.done(*move);
  EXPECT_TRUE(table.layer(0).home(5).is_host());
  EXPECT_TRUE(table.layer(0).home(0).is_resident());  // by plan
}

// However many others were wanted before it.
TEST(ExpertCache, TheMostWantedIsFoundAmongMany) {
  ExpertTable table = table_of(128, 2, 1);
  ExpertCache cache(table, {.window_rows = 100'000});
  for (int i = 0; i < 100; ++i) choose(cache, {0, 5});
  const auto first = cache.next();
  ASSERT_TRUE(first);
  cache.begin(*first);
  cache.done(*first);
  for (int expert = 10; expert < 100; ++expert)
    for (int i = 0; i < 2; ++i) choose(cache, {0, expert});
  for (int i = 0; i < 1000; ++i) choose(cache, {0, 120});
  const std::optional<ExpertMove> move = cache.next();
  ASSERT_TRUE(move);
  EXPECT_EQ(move->expert, 120);
}

TEST(ExpertCache, KnowsWhetherACopyWasOfUse) {
  for (const bool used : {false, true}) {
    ExpertTable table = table_of(8, 2, 1);
    ExpertCache cache(table, {});
    const auto replace_by = [&](int expert) {
      for (int i = 0; i < 9; ++i) choose(cache, {0, expert});
      const std::optional<ExpertMove> move = cache.next();
      EXPECT_TRUE(move && move->expert == expert);
      const bool useful = cache.begin(*move);
      cache.done(*move);
      return useful;
    };
    EXPECT_TRUE(replace_by(5)) << "nobody left";
    if (used) choose(cache, {0, 5});
    for (int i = 0; i < 9; ++i) choose(cache, {0, 6});
    EXPECT_EQ(replace_by(6), used);
    for (int i = 0; i < 20; ++i) choose(cache, {0, 7});
    for (int i = 0; i < 20; ++i) choose(cache, {0, 5});
    EXPECT_FALSE(replace_by(5)) << "6 was not used since it came";
  }
}

TEST(ExpertCache, ACopyThatFailsLeavesASparePlaceAndEndsTheMoves) {
  ExpertTable table = table_of(8, 2, 1);
  ExpertCache cache(table, {});
  for (int i = 0; i < 2; ++i) choose(cache, {0, 5});
  std::optional<ExpertMove> move = cache.next();
  cache.begin(*move);
  cache.done(*move);
  for (int i = 0; i < 9; ++i) choose(cache, {0, 6});
  move = cache.next();
  ASSERT_TRUE(move && move->evicted == 5);
  cache.begin(*move);
  cache.stop();
  EXPECT_TRUE(table.layer(0).home(5).is_host());
  EXPECT_TRUE(table.layer(0).home(6).is_host());
  EXPECT_EQ(table.layer(0).spare(), 1);
  for (int i = 0; i < 9; ++i) choose(cache, {0, 6});
  EXPECT_FALSE(cache.next());
}

TEST(ExpertCache, WhatWasWantedLongAgoIsForgotten) {
  ExpertTable table = table_of(8, 2, 1);
  ExpertCache cache(table, {.window_rows = 10});
  choose(cache, {0, 5});
  for (int i = 0; i < 30; ++i) choose(cache, {0, 1});
  choose(cache, {0, 5});
  EXPECT_FALSE(cache.next());
}

TEST(ExpertCache, FollowsASkewedRouting) {
  constexpr int kExperts = 64, kUsed = 4;
  ExpertTable table = table_of(kExperts, 8, 16);
  ExpertCache cache(table, {});
  std::mt19937 random(1);
  std::vector<double> weights;
  for (int e = 0; e < kExperts; ++e) weights.push_back(1.0 / (1 + (e * 37 + 11) % kExperts));
  std::discrete_distribution<int> zipf(weights.begin(), weights.end());
  int without = 0, with = 0;  // pairs away over the last steps
  for (int step = 0; step < 2000; ++step) {
    std::vector<int> chosen;
    while (static_cast<int>(chosen.size()) < kUsed) {
      const int e = zipf(random);
      if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
    }
    for (const int e : chosen) {
      if (step < 1000) continue;
      without += table.layer(0).planned(e).is_resident() ? 0 : 1;
      with += table.layer(0).home(e).is_resident() ? 0 : 1;
    }
    choose(cache, chosen);
    if (const auto move = cache.next()) {
      cache.begin(*move);
      cache.done(*move);
    }
  }
  EXPECT_LT(with * 2, without);
}

}  // namespace
}  // namespace tessera
