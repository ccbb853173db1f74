// Pairs that the device computes with experts that it fetches for the step.
#include <gtest/gtest.h>

#include "experts/dispatcher_rig.h"

namespace tessera {
namespace {

ShardLayout streamed_layout(std::vector<ExpertHome> homes) {
  ShardLayout layout = layout_of(std::move(homes));
  layout.experts[1].streamed = true;
  return layout;
}

// With a layer before that one that lacks the same experts, and so is waited for.
ModelSpec two_layers() {
  ModelSpec spec = spec_of();
  spec.layers[0].moe = spec.layers[1].moe;
  return spec;
}
ShardLayout two_layers(ShardLayout layout) {
  layout.experts[0].home = layout.experts[1].home;
  return layout;
}

std::vector<std::uint8_t> all_of_host(const ShardLayout& layout) {
  std::vector<std::uint8_t> experts;
  for (const ExpertHome home : layout.experts[1].home) experts.push_back(home.is_host() ? 1 : 0);
  return experts;
}

DispatcherParts parts_of(ExpertStream mode, ExpertMetrics& metrics, int workers = 0) {
  DispatcherParts parts{.options = {.stream = mode},
                        .host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                        .metrics = &metrics};
  for (int w = 0; w < workers; ++w)
    parts.workers.push_back(std::make_unique<FakeExecutor>("worker", FakeExecutor::Script{}));
  return parts;
}

// Whatever the table, what the device can fetch, and the rule: the sums are those of all pairs,
// each once, and the counters say who computed them.
TEST(DispatcherStreams, ServeEveryPairExactlyOnce) {
  const ModelSpec spec = spec_of();
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int workers = static_cast<int>(random() % 3);
    const ShardLayout layout = streamed_layout(random_homes(random, workers));
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    Dispatcher dispatcher(spec, layout,
                          parts_of(static_cast<ExpertStream>(random() % 3), metrics, workers));
    FakeDevice device;
    device.fetchable = all_of_host(layout);
    if (seed % 2 == 0)
      for (std::uint8_t& one : device.fetchable) one = random() % 4 == 0 ? 0 : one;
    device.least_rows = static_cast<int>(random() % kRows);
    device.crossing_us = seed % 3 == 0 ? 0.5 : 2.0;
    ASSERT_TRUE(dispatcher.prepare(device));
    std::size_t pairs = 0;
    for (int step = 0; step < 12; ++step) {
      const int rows = 1 + static_cast<int>(random() % kRows);
      fill(device, random, rows);
      std::vector<float> expected(device.rows.size(), 0.0f);
      add_pairs(device.pairs, device.rows, expected.data());
      const std::size_t before = device.streamed_pairs;
      ASSERT_TRUE(dispatcher.compute(device, 1));
      ASSERT_EQ(device.sums, expected) << "seed " << seed << ", step " << step;
      EXPECT_EQ(device.dense_calls, step + 1);
      std::size_t could = 0;
      for (const RoutedPair& pair : device.pairs)
        could += device.fetchable[static_cast<std::size_t>(pair.expert)];
      const std::size_t streamed = device.streamed_pairs - before;
      EXPECT_TRUE(streamed == 0 || streamed == could) << streamed << " of " << could;
      if (rows < device.least_rows) {
        EXPECT_EQ(streamed, 0u);
      }
      pairs += device.pairs.size();
    }
    EXPECT_EQ(metrics.pairs_streamed.value(), device.streamed_pairs);
    EXPECT_EQ(metrics.streamed_experts.value(), static_cast<std::uint64_t>(device.fetched.experts));
    EXPECT_EQ(metrics.streamed_bytes.value(), static_cast<std::uint64_t>(device.fetched.bytes));
    const ExpertUse use = metrics.totals();
    EXPECT_EQ(use.pairs_resident + use.pairs_streamed + use.host.pairs + use.worker.pairs,
              static_cast<double>(pairs));
  }
}

// Then no row leaves the device, and the host is not asked.
TEST(DispatcherStreams, LeaveTheHostAloneWhereAllAreFetched) {
  const ShardLayout layout = streamed_layout(std::vector<ExpertHome>(kExperts, ExpertHome::host()));
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  Dispatcher dispatcher(spec_of(), layout, parts_of(ExpertStream::on, metrics));
  FakeDevice device;
  device.fetchable = all_of_host(layout);
  ASSERT_TRUE(dispatcher.prepare(device));
  std::mt19937 random(3);
  fill(device, random, kRows);
  ASSERT_TRUE(dispatcher.compute(device, 1));
  EXPECT_EQ(device.streamed_pairs, device.pairs.size());
  EXPECT_EQ(device.rows_given, 0);
  EXPECT_EQ(metrics.host.calls.value(), 0u);
}

// What the device says that it reads is neither asked for nor fetched again.
TEST(DispatcherStreams, LeavePairsToADeviceThatReadsThem) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    const ShardLayout layout = streamed_layout(random_homes(random, round % 3));
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    Dispatcher dispatcher(spec_of(), layout, parts_of(ExpertStream::automatic, metrics, round % 3));
    FakeDevice device;
    device.fetchable = all_of_host(layout);
    device.least_rows = kRows;
    ASSERT_TRUE(dispatcher.prepare(device));
    ASSERT_EQ(device.reads.size(), static_cast<std::size_t>(kUsed) + 1);
    fill(device, random, 1 + static_cast<int>(random() % 8));
    std::size_t read = 0;
    for (RoutedPair& pair : device.pairs) {
      pair.fetched = device.fetchable[static_cast<std::size_t>(pair.expert)] != 0 &&
                     (round == 0 || random() % 2 == 0);
      read += pair.fetched ? 1 : 0;
    }
    std::vector<float> expected(device.rows.size(), 0.0f);
    add_pairs(device.pairs, device.rows, expected.data());
    ASSERT_TRUE(dispatcher.compute(device, 1));
    EXPECT_EQ(device.sums, expected);
    EXPECT_EQ(device.streamed_pairs, read);
    EXPECT_EQ(metrics.pairs_streamed.value(), read);
    if (round == 0) {
      EXPECT_EQ(metrics.host.pairs.value(), 0u);
    }
  }
}

// The host is told of its own, once each, and only where the device foresees and the person wants
// it; of the pairs that come it is counted which were among them.
TEST(DispatcherForesees, WhatIsTheHosts) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    const std::vector<ExpertHome> homes = random_homes(random, round % 3);
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    DispatcherParts parts = parts_of(ExpertStream::off, metrics, round % 3);
    parts.options.foresee = round % 5 != 0;
    auto* host = static_cast<FakeExecutor*>(parts.host.get());
    host->takes_hints = round % 4 != 0;
    Dispatcher dispatcher(two_layers(), two_layers(streamed_layout(homes)), std::move(parts));
    FakeDevice device;
    device.foresees = round % 7 != 0;
    for (int i = 0; i < 6; ++i)
      device.coming.push_back(static_cast<std::int32_t>(random() % kExperts));
    std::vector<std::int32_t> expected;
    if (round % 5 != 0 && round % 7 != 0)
      for (const std::int32_t e : device.coming)
        if (homes[static_cast<std::size_t>(e)].is_host() &&
            std::find(expected.begin(), expected.end(), e) == expected.end())
          expected.push_back(e);
    ASSERT_TRUE(dispatcher.prepare(device));
    dispatcher.foresee(device);
    EXPECT_EQ(host->foreseen, expected);
    EXPECT_EQ(host->foreseen_layer, expected.empty() ? -1 : 1);
    std::uint64_t right = 0, all = 0;
    for (int i = 0; i < 2; ++i) {  // what was told is of the first alone
      fill(device, random, 2);
      for (const RoutedPair& pair : device.pairs) {
        if (i > 0 || !homes[static_cast<std::size_t>(pair.expert)].is_host()) continue;
        ++all;
        right += std::find(expected.begin(), expected.end(), pair.expert) != expected.end() ? 1 : 0;
      }
      ASSERT_TRUE(dispatcher.compute(device, 1));
    }
    const bool tells = host->takes_hints && !expected.empty();
    EXPECT_EQ(metrics.foreseen.value(), tells ? right : 0);
    EXPECT_EQ(metrics.unforeseen.value(), tells ? all - right : 0);
  }
}

// A device that reads them all, one whose experts are all at workers, and one that waits in no
// layer before have nothing to foresee.
TEST(DispatcherForesees, NothingWhereTheHostIsNotAsked) {
  for (const auto& [at_worker, waits] : {std::pair(false, true), {true, true}, {false, false}}) {
    const ExpertHome home = at_worker ? ExpertHome::worker(0) : ExpertHome::host();
    ShardLayout layout = streamed_layout(std::vector<ExpertHome>(kExperts, home));
    if (waits) layout = two_layers(std::move(layout));
    for (const bool reads : {false, true}) {
      MetricsRegistry registry;
      ExpertMetrics metrics(registry);
      DispatcherParts parts = parts_of(ExpertStream::on, metrics, at_worker ? 1 : 0);
      const auto* host = static_cast<const FakeExecutor*>(parts.host.get());
      Dispatcher dispatcher(two_layers(), layout, std::move(parts));
      FakeDevice device;
      device.foresees = true;
      device.coming = {0, 1};
      if (reads) device.fetchable = std::vector<std::uint8_t>(kExperts, 1);
      ASSERT_TRUE(dispatcher.prepare(device));
      dispatcher.foresee(device);
      EXPECT_EQ(host->foreseen_layer, at_worker || reads || !waits ? -1 : 1);
    }
  }
}

// The plan wanted it, and the device has no memory for it.
TEST(DispatcherStreams, AreTheHostsWhereTheDeviceHasNone) {
  const ShardLayout layout = streamed_layout(std::vector<ExpertHome>(kExperts, ExpertHome::host()));
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  Dispatcher dispatcher(spec_of(), layout, parts_of(ExpertStream::on, metrics));
  FakeDevice device;
  ASSERT_TRUE(dispatcher.prepare(device));
  std::mt19937 random(4);
  fill(device, random, kRows);
  ASSERT_TRUE(dispatcher.compute(device, 1));
  EXPECT_EQ(device.streamed_pairs, 0u);
  EXPECT_EQ(metrics.host.pairs.value(), device.pairs.size());
}

TEST(StreamChoice, WeighsTheLinkAgainstTheHost) {
  const StreamChoice choice(ExpertStream::automatic, {.expert_us = 15.0, .pair_us = 5.0});
  const auto streams = [&](int experts, std::size_t pairs) {
    return choice.streams({.experts = experts, .pairs = pairs}, 35.0 * experts);
  };
  EXPECT_FALSE(streams(0, 0));
  EXPECT_FALSE(streams(8, 8));       // a token
  EXPECT_FALSE(streams(256, 1024));  // four pairs an expert: as much
  EXPECT_TRUE(streams(256, 1025));
  EXPECT_TRUE(streams(256, 32768));
  EXPECT_FALSE(StreamChoice().streams({.experts = 1, .pairs = 9999}, 0.0));
  const StreamChoice always(ExpertStream::on, {});
  EXPECT_TRUE(always.streams({.experts = 8, .pairs = 8}, 1e9));
  EXPECT_FALSE(always.streams({}, 0.0));
}

TEST(StreamChoice, TakesItsPaceFromThreeJobs) {
  const HostTimes times{
      .many = 8, .few = 2, .rows = 32, .many_us = 190, .few_us = 70, .rows_us = 1430};
  const HostPace pace = times.pace();
  EXPECT_DOUBLE_EQ(pace.pair_us, 5.0);     // 1240 / 248
  EXPECT_DOUBLE_EQ(pace.expert_us, 15.0);  // 120 / 6, less a pair
  EXPECT_DOUBLE_EQ(pace.call_us, 30.0);
  // Jobs of few that took too long, or too short: all of it is the experts'.
  for (const double few_us : {200.0, 190.0, 170.0, 10.0}) {
    HostTimes odd = times;
    odd.few_us = few_us;
    EXPECT_DOUBLE_EQ(odd.pace().call_us, 0.0) << few_us;
    EXPECT_DOUBLE_EQ(odd.pace().pair_us, 5.0) << few_us;
    EXPECT_DOUBLE_EQ(odd.pace().expert_us, 18.75) << few_us;
  }
  const HostPace one = HostTimes{.many = 1, .many_us = 40, .few_us = 10, .rows_us = 40}.pace();
  EXPECT_DOUBLE_EQ(one.call_us + one.expert_us + one.pair_us, 40.0);
}

TEST(StreamChoice, DividesARowsExpertsSoThatTheLaterIsEarly) {
  const StreamChoice choice(ExpertStream::automatic,
                            {.call_us = 10.0, .expert_us = 15.0, .pair_us = 5.0});
  EXPECT_EQ(choice.reads(0, 40.0), 0);
  EXPECT_EQ(choice.reads(1, 40.0), 0);  // 56 to 42
  EXPECT_EQ(choice.reads(1, 20.0), 1);  // 35
  EXPECT_EQ(choice.reads(8, 35.0), 3);  // 124 and 122
  EXPECT_EQ(choice.reads(8, 1.0), 8);   // nothing is asked for
  EXPECT_EQ(choice.reads(8, 1000.0), 0);
  EXPECT_EQ(StreamChoice().reads(8, 1.0), 0);
  EXPECT_EQ(StreamChoice(ExpertStream::on, {}).reads(8, 1e9), 8);
  // What is read ahead of a row changes what it is asked for, and nothing of a prompt.
  const HostPace host{.call_us = 20, .expert_us = 15, .pair_us = 3};
  const StreamChoice plain(ExpertStream::automatic, host);
  const HostPace row{.expert_us = 12, .pair_us = 3};
  const StreamChoice ahead(ExpertStream::automatic, host, row, 0);
  EXPECT_LT(ahead.reads(8, 38.0), plain.reads(8, 38.0));
  // The device begins before it asks too: 94 and 102 us in place of 94 and 117.
  EXPECT_EQ(ahead.reads(8, 38.0), 2);
  EXPECT_EQ(StreamChoice(ExpertStream::automatic, host, row, 40).reads(8, 38.0), 3);
  for (int experts = 1; experts < 200; ++experts) {
    const StreamChoice::Work work{.experts = experts, .pairs = static_cast<std::size_t>(experts)};
    EXPECT_EQ(ahead.streams(work, 17.0 * experts), plain.streams(work, 17.0 * experts));
  }
}

}  // namespace
}  // namespace tessera
