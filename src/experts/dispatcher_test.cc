#include "experts/dispatcher.h"

#include <gtest/gtest.h>

#include "experts/dispatcher_rig.h"

namespace tessera {
namespace {

// Whatever the table, the modes, the limits and what breaks: the sums are those of all pairs, each
// once. The numbers are small integers, so that sums are exact in any order.
TEST(Dispatcher, ServesEveryPairExactlyOnce) {
  const ModelSpec spec = spec_of();
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int workers = static_cast<int>(random() % 3);
    const ShardLayout layout = layout_of(random_homes(random, workers));
    const ExpertTable table(layout);
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    DispatcherParts parts{.options = {.mode = static_cast<ExpertMode>(random() % 3),
                                      .batch_capacity = 1 + static_cast<int>(random() % 50),
                                      .patience = std::chrono::microseconds(random() % 3)},
                          .host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                          .metrics = &metrics};
    for (int w = 0; w < workers; ++w) {
      const auto fault = random() % 6;
      const auto sometimes = [&random](ErrorCode code) {
        return [&random, code]() -> std::optional<ErrorCode> {
          if (random() % 3 == 0) return code;
          return std::nullopt;
        };
      };
      FakeExecutor::Script script{
          .limits = {.max_rows = 1 + static_cast<int>(random() % kRows),
                     .max_pairs = kUsed + static_cast<int>(random() % 20),
                     .jobs = 1 + static_cast<int>(random() % 3)},
          .table = &table,
          .owns = [w](ExpertHome home) { return home == ExpertHome::worker(w); }};
      if (fault == 1) script.on_submit = sometimes(ErrorCode::unavailable);
      if (fault == 2) script.on_submit = sometimes(ErrorCode::exhausted);
      if (fault == 3) script.on_collect = sometimes(ErrorCode::cancelled);
      if (fault == 5) script.on_wait = [&random] { return random() % 3 == 0; };
      if (fault == 4) parts.workers.push_back(nullptr);
      if (fault != 4)
        parts.workers.push_back(std::make_unique<FakeExecutor>("worker", std::move(script)));
    }
    Dispatcher dispatcher(spec, layout, std::move(parts));
    FakeDevice device;
    std::size_t pairs = 0;
    for (int step = 0; step < 12; ++step) {
      fill(device, random, 1 + static_cast<int>(random() % kRows));
      std::vector<float> expected(device.rows.size(), 0.0f);
      add_pairs(device.pairs, device.rows, expected.data());
      ASSERT_TRUE(dispatcher.compute(device, 1));
      ASSERT_EQ(device.sums, expected) << "seed " << seed << ", step " << step;
      EXPECT_EQ(device.dense_calls, step + 1);
      if (!table.layer(1).all_resident()) pairs += device.pairs.size();
    }
    EXPECT_EQ(metrics.pairs_resident.value(), device.resident_pairs);
    const ExpertUse use = metrics.totals();
    EXPECT_EQ(use.pairs_resident + use.host.pairs + use.worker.pairs, static_cast<double>(pairs));
  }
}

TEST(Dispatcher, SplitsPairsIntoListsThatTogetherAreAll) {
  std::mt19937 random(1);
  const ShardLayout layout = layout_of(random_homes(random, 2));
  const ExpertTable table(layout);
  PairSplit split;
  split.reserve(table, kRows * kUsed);
  FakeDevice device;
  fill(device, random, kRows);
  split.assign(table.layer(1), device.pairs);
  std::vector<RoutedPair> all;
  for (const auto list :
       {split.resident(), split.of_host(), split.of_worker(0), split.of_worker(1)})
    all.insert(all.end(), list.begin(), list.end());
  const auto before = [](const RoutedPair& a, const RoutedPair& b) {
    return std::pair(a.row, a.slot) < std::pair(b.row, b.slot);
  };
  std::sort(all.begin(), all.end(), before);
  ASSERT_EQ(all.size(), device.pairs.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].expert, device.pairs[i].expert);
    EXPECT_EQ(all[i].weight, device.pairs[i].weight);
  }
}

TEST(Dispatcher, StreamSendsAtMostFourRowsAndBatchedAllOfThem) {
  const ModelSpec spec = spec_of();
  const ShardLayout layout = layout_of(std::vector<ExpertHome>(kExperts, ExpertHome::worker(0)));
  const auto run = [&](ExpertMode mode, int capacity) {
    auto worker = std::make_unique<FakeExecutor>("worker", FakeExecutor::Script{});
    FakeExecutor& seen = *worker;
    DispatcherParts parts{.options = {.mode = mode, .batch_capacity = capacity},
                          .host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{})};
    parts.workers.push_back(std::move(worker));
    Dispatcher dispatcher(spec, layout, std::move(parts));
    FakeDevice device;
    std::mt19937 random(2);
    fill(device, random, kRows);
    EXPECT_TRUE(dispatcher.compute(device, 1));
    return std::pair(seen.taken, seen.most_rows);
  };
  EXPECT_EQ(run(ExpertMode::stream, 1024), std::pair(10, 4));
  EXPECT_EQ(run(ExpertMode::batched, 1024), std::pair(1, 40));
  EXPECT_EQ(run(ExpertMode::automatic, 1024), std::pair(1, 40));
  EXPECT_EQ(run(ExpertMode::batched, 15), std::pair(3, 15));
}

// Jobs say what the host would take for them, first from one expert and then from what it computed.
TEST(Dispatcher, JobsCarryTheHostsTime) {
  const ModelSpec spec = spec_of();
  const ShardLayout layout = layout_of(std::vector<ExpertHome>(kExperts, ExpertHome::worker(0)));
  FakeExecutor::Script measured, script;
  measured.compute_us = 7;
  bool late = false;
  script.on_collect = [&]() -> std::optional<ErrorCode> {
    if (late) return ErrorCode::cancelled;
    return std::nullopt;
  };
  DispatcherParts parts{.host = std::make_unique<FakeExecutor>("host", measured)};
  const auto* worker = static_cast<FakeExecutor*>(
      parts.workers.emplace_back(std::make_unique<FakeExecutor>("worker", script)).get());
  const auto* host = static_cast<const FakeExecutor*>(parts.host.get());
  Dispatcher dispatcher(spec, layout, std::move(parts));
  ASSERT_TRUE(dispatcher.measure_host());
  EXPECT_EQ(host->taken, 2);
  FakeDevice device;
  std::mt19937 random(3);
  fill(device, random, 1);
  ASSERT_TRUE(dispatcher.compute(device, 1));
  EXPECT_DOUBLE_EQ(worker->host_us, 7.0 * static_cast<double>(device.pairs.size()));
  late = true;  // 7 us for all of its pairs
  device.summed = false;
  ASSERT_TRUE(dispatcher.compute(device, 1));
  device.summed = false;
  ASSERT_TRUE(dispatcher.compute(device, 1));
  EXPECT_LT(worker->host_us, 7.0 * static_cast<double>(device.pairs.size()));
}

// What a worker computes while another one is waited for is hidden behind nothing.
TEST(Dispatcher, HidesComputationBehindWorkAlone) {
  const ModelSpec spec = spec_of();
  std::vector<ExpertHome> homes(kExperts, ExpertHome::worker(0));
  homes[0] = ExpertHome::resident();
  homes[1] = ExpertHome::worker(1);
  const ShardLayout layout = layout_of(homes);
  for (const int work_ms : {0, 30}) {
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    FakeExecutor::Script slow, done;
    std::chrono::steady_clock::time_point waited_since;
    slow.on_collect = [&]() -> std::optional<ErrorCode> {
      waited_since = std::chrono::steady_clock::now();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return std::nullopt;
    };
    slow.compute_us = 200'000;
    done.compute_us = 3'600'000'000;
    DispatcherParts parts{.host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                          .metrics = &metrics};
    parts.workers.push_back(std::make_unique<FakeExecutor>("worker:0", slow));
    parts.workers.push_back(std::make_unique<FakeExecutor>("worker:1", done));
    Dispatcher dispatcher(spec, layout, std::move(parts));
    FakeDevice device;
    device.takes = std::chrono::milliseconds(work_ms);
    std::mt19937 random(3);
    fill(device, random, 1);
    for (int e = 0; e < 4; ++e) device.pairs[static_cast<std::size_t>(e)].expert = e;
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(dispatcher.compute(device, 1));
    const std::chrono::microseconds hidden(metrics.worker.hidden_us.value());
    EXPECT_GE(hidden, std::chrono::milliseconds(work_ms));
    EXPECT_LE(hidden, waited_since - begin);
  }
}

TEST(Dispatcher, CountsWhatIsComputedWhere) {
  const ModelSpec spec = spec_of();
  std::vector<ExpertHome> homes(kExperts, ExpertHome::worker(0));
  homes[0] = ExpertHome::resident();
  homes[1] = ExpertHome::host();
  const ShardLayout layout = layout_of(homes);
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  bool late = false;
  FakeExecutor::Script script;
  script.on_collect = [&]() -> std::optional<ErrorCode> {
    if (late) return ErrorCode::cancelled;
    return std::nullopt;
  };
  Dispatcher dispatcher(spec, layout, host_and_worker(script, metrics));
  FakeDevice device;
  std::mt19937 random(3);
  fill(device, random, 1);
  for (int e = 0; e < 4; ++e) device.pairs[static_cast<std::size_t>(e)].expert = e;
  ASSERT_TRUE(dispatcher.compute(device, 1));
  EXPECT_EQ(metrics.pairs_resident.value(), 1u);
  EXPECT_EQ(metrics.host.pairs.value(), 1u);
  EXPECT_EQ(metrics.worker.pairs.value(), 2u);
  EXPECT_EQ(metrics.host.calls.value(), 1u);
  EXPECT_EQ(metrics.worker.calls.value(), 1u);
  EXPECT_EQ(metrics.mixed_layers.value(), 1u);
  EXPECT_EQ(metrics.cache_miss.value(), 0u) << "no expert may come";
  EXPECT_EQ(metrics.bytes_out.value(), 20u);
  late = true;
  device.summed = false;
  ASSERT_TRUE(dispatcher.compute(device, 1));
  const std::string page = registry.render();
  for (const char* line : {"tessera_moe_fallback_total{reason=\"deadline\"} 1\n",
                           "tessera_moe_pairs_total{tier=\"host\"} 4\n",
                           "tessera_moe_pairs_total{tier=\"worker\"} 2\n",
                           "tessera_moe_calls_total{tier=\"host\"} 3\n",
                           "tessera_moe_calls_total{tier=\"worker\"} 2\n"})
    EXPECT_NE(page.find(line), std::string::npos) << line;
  const ExpertUse totals = metrics.totals();
  EXPECT_EQ(totals.fallbacks, 1.0);
  EXPECT_EQ(totals.pairs_resident + totals.host.pairs + totals.worker.pairs, 8.0);
}

// Four experts of 1000 bytes in each row: one resident, one of the host, two of a worker.
TEST(Dispatcher, CountsBytesOfExpertsAndWhatTheyWereReckonedToTake) {
  const ModelSpec spec = spec_of();
  std::vector<ExpertHome> homes(kExperts, ExpertHome::worker(0));
  homes[0] = ExpertHome::resident();
  homes[1] = ExpertHome::host();
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  DispatcherParts parts = host_and_worker({.compute_us = 400'000}, metrics);
  parts.expert_bytes = {0, 1000};
  parts.costs = {{.call_us = 10, .bytes_per_us = 100}, {.call_us = 30, .bytes_per_us = 1000}};
  Dispatcher dispatcher(spec, layout_of(homes), std::move(parts));
  FakeDevice device;
  std::mt19937 random(3);
  const auto run = [&](int n_rows) {
    fill(device, random, n_rows);
    for (std::size_t i = 0; i < device.pairs.size(); ++i)
      device.pairs[i].expert = static_cast<int>(i % 4);
    ASSERT_TRUE(dispatcher.compute(device, 1));
  };
  run(1);
  EXPECT_EQ(metrics.expert_bytes_resident.value(), 1000u);
  EXPECT_EQ(metrics.host.expert_bytes.value(), 1000u);
  EXPECT_EQ(metrics.worker.expert_bytes.value(), 2000u);
  EXPECT_EQ(metrics.host.predicted_us.value(), 20u);
  EXPECT_EQ(metrics.worker.predicted_us.value(), 32u);
  EXPECT_GE(metrics.worker.taken_us.value(), 400'000u);
  EXPECT_EQ(metrics.worker.row_calls.value(), 1u);
  EXPECT_EQ(metrics.worker.row_bytes.value(), 2000u);
  run(2);  // that share their experts
  EXPECT_EQ(metrics.expert_bytes_resident.value(), 2000u);
  EXPECT_EQ(metrics.host.expert_bytes.value(), 2000u);
  EXPECT_EQ(metrics.worker.expert_bytes.value(), 4000u);
  EXPECT_EQ(metrics.worker.predicted_us.value(), 32u) << "of jobs of one row alone";
}

// Layers elsewhere tell how many jobs of one row their host had, and this process what that should
// have taken.
TEST(Dispatcher, CountsOfLayersElsewhereAreHeldAgainstTheirCost) {
  MetricsRegistry there, here;
  ExpertMetrics of_worker(there), metrics(here);
  of_worker.host.row_calls.add(3);
  of_worker.host.row_bytes.add(6000);
  of_worker.host.taken_us.add(70);
  metrics.add(of_worker.counts(), {.call_us = 10, .bytes_per_us = 100});
  EXPECT_EQ(metrics.host.predicted_us.value(), 90u);
  EXPECT_EQ(metrics.host.taken_us.value(), 70u);
  metrics.add(of_worker.counts(), {});
  EXPECT_EQ(metrics.host.predicted_us.value(), 90u) << "the placement had no cost";
}

TEST(ExpertTable, ExpertsComeAndGoToWhereTheyBelong) {
  std::vector<ExpertHome> planned(kExperts, ExpertHome::worker(1));
  planned[0] = ExpertHome::resident();
  ExpertTable table(layout_of(planned, /*spare=*/1));
  EXPECT_EQ(table.workers(), 2);
  EXPECT_TRUE(table.layer(0).all_resident());
  LayerHomes& homes = table.layer(1);
  homes.admit(5);
  EXPECT_TRUE(homes.home(5).is_resident());
  EXPECT_EQ(homes.spare(), 0);
  homes.release(5);
  EXPECT_EQ(homes.spare(), 1);
  homes.admit(6);
  EXPECT_EQ(homes.home(5), ExpertHome::worker(1));
  homes.release(0);
  homes.admit(5);
  EXPECT_EQ(homes.home(0), ExpertHome::host());
  homes.release(6);
  homes.admit(0);
  EXPECT_TRUE(homes.home(0).is_resident());
}

// An expert may be nearer or not: where memory for the copy lacks, or the file cannot be read, it
// is not, and nothing else fails. A device that is lost is.
TEST(Dispatcher, GoesOnWithoutCopiesThatFail) {
  for (const ErrorCode code : {ErrorCode::exhausted, ErrorCode::io, ErrorCode::internal}) {
    const bool lost = code == ErrorCode::internal;
    std::mt19937 random(1);
    const std::vector<ExpertHome> homes(kExperts, ExpertHome::host());
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    Dispatcher dispatcher(spec_of(), layout_of(homes, 1),
                          {.host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                           .metrics = &metrics});
    FakeDevice device;
    device.copy_fails = code;
    if (lost) device.lost = Error::make(code, "lost");
    Status status;
    for (int step = 0; step < 50 && status; ++step) {
      fill(device, random, kRows);
      std::vector<float> expected(device.rows.size(), 0.0f);
      add_pairs(device.pairs, device.rows, expected.data());
      ASSERT_TRUE(dispatcher.compute(device, 1));
      EXPECT_EQ(device.sums, expected);
      status = dispatcher.between_steps(device);
    }
    EXPECT_EQ(device.moves, 1);
    EXPECT_EQ(metrics.cache_admit.value(), 0u);
    EXPECT_EQ(metrics.cache_miss.value(), metrics.host.pairs.value());
    EXPECT_EQ(status.ok(), !lost);
    EXPECT_EQ(metrics.cache_stopped.value(), code == ErrorCode::exhausted ? 1u : 0u);
    EXPECT_EQ(metrics.cache_unread.value(), code == ErrorCode::io ? 1u : 0u);
  }
}

}  // namespace
}  // namespace tessera
