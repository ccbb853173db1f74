// Workers that fail, and workers that are slow.
#include "experts/dispatcher.h"

#include <gtest/gtest.h>

#include "experts/dispatcher_rig.h"

namespace tessera {
namespace {

TEST(Dispatcher, ARequiredWorkerFailsTheStepOnly) {
  const ModelSpec spec = spec_of();
  std::vector<ExpertHome> homes(kExperts, ExpertHome::worker(0));
  for (int e = 0; e < kExperts; e += 2) homes[static_cast<std::size_t>(e)] = ExpertHome::worker(1);
  const ShardLayout layout = layout_of(homes);
  bool broken = false;
  FakeExecutor::Script script;
  script.on_collect = [&]() -> std::optional<ErrorCode> {
    if (broken) return ErrorCode::cancelled;
    return std::nullopt;
  };
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  DispatcherParts parts{.options = {.required = true},
                        .host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                        .metrics = &metrics};
  parts.workers.push_back(std::make_unique<FakeExecutor>("worker:0", script));
  parts.workers.push_back(std::make_unique<FakeExecutor>("worker:1", FakeExecutor::Script{}));
  Dispatcher dispatcher(spec, layout, std::move(parts));
  FakeDevice device;
  std::mt19937 random(3);
  for (int step = 0; step < 6; ++step) {
    broken = step % 2 == 1;
    fill(device, random, kRows);
    std::vector<float> expected(device.rows.size(), 0.0f);
    add_pairs(device.pairs, device.rows, expected.data());
    const Status status = dispatcher.compute(device, 1);
    ASSERT_EQ(status.ok(), !broken);
    if (!broken) {
      EXPECT_EQ(device.sums, expected);
    } else {
      EXPECT_EQ(status.error().code, ErrorCode::unavailable);
      EXPECT_NE(status.error().message.find("worker:0"), std::string::npos);
    }
  }
  const std::string page = registry.render();
  for (const char* line : {"tessera_moe_required_failures_total{reason=\"deadline\"} 3\n",
                           "tessera_moe_required_failures_total{reason=\"unavailable\"} 0\n",
                           "tessera_moe_fallback_total{reason=\"deadline\"} 0\n"})
    EXPECT_NE(page.find(line), std::string::npos) << line;
}

TEST(Dispatcher, EveryReasonIsThereFromTheStart) {
  MetricsRegistry registry;
  const ExpertMetrics metrics(registry);
  const std::string page = registry.render();
  for (int i = 0; i < kWorkerFailures; ++i)
    for (const char* name : {"tessera_moe_fallback_total", "tessera_moe_required_failures_total"}) {
      const std::string line = fmt::format("{}{{reason=\"{}\"}} 0\n", name,
                                           worker_failure_name(static_cast<WorkerFailure>(i)));
      EXPECT_NE(page.find(line), std::string::npos) << line;
    }
}

// The host computes a job whose sums no sum of finite products can be.
TEST(Dispatcher, TellsSumsThatAreNotFiniteFromJobsThatAreRefused) {
  const ModelSpec spec = spec_of();
  const ShardLayout layout = layout_of(std::vector<ExpertHome>(kExperts, ExpertHome::worker(0)));
  for (const bool taken : {true, false}) {
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    FakeExecutor::Script script;
    (taken ? script.on_collect : script.on_submit) = [] { return ErrorCode::invalid; };
    Dispatcher dispatcher(spec, layout, host_and_worker(script, metrics));
    FakeDevice device;
    std::mt19937 random(3);
    fill(device, random, 1);
    ASSERT_TRUE(dispatcher.compute(device, 1));
    EXPECT_NE(registry.render().find(fmt::format("tessera_moe_fallback_total{{reason=\"{}\"}} 1\n",
                                                 taken ? "not_finite" : "refused")),
              std::string::npos);
  }
}

// The host computes what a worker has no room for, with the bits that it would have had, and nobody
// is said to fail; a worker that is required has all or is none.
TEST(Dispatcher, WhatAWorkerLacksTheHostComputes) {
  const ModelSpec spec = spec_of();
  const ShardLayout layout = layout_of(std::vector<ExpertHome>(kExperts, ExpertHome::worker(0)));
  for (const bool required : {false, true}) {
    for (const bool rounds : {false, true}) {
      MetricsRegistry registry;
      ExpertMetrics metrics(registry);
      bool has = false;
      FakeExecutor::Script script;
      script.rounds = rounds;
      script.has = [&](int layer) { return has || layer != 1; };
      DispatcherParts parts{.options = {.required = required},
                            .host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                            .metrics = &metrics};
      const auto* worker = static_cast<FakeExecutor*>(
          parts.workers.emplace_back(std::make_unique<FakeExecutor>("worker:0", script)).get());
      Dispatcher dispatcher(spec, layout, std::move(parts));
      std::vector<std::vector<float>> sums;
      for (const bool now : {false, true}) {
        has = now;
        FakeDevice device;
        std::mt19937 random(3);
        fill(device, random, kRows);
        ASSERT_TRUE(dispatcher.compute(device, 1));
        EXPECT_EQ(worker->taken > 0, now || required);
        EXPECT_TRUE(dispatcher.away().empty());
        sums.push_back(device.sums);
      }
      EXPECT_EQ(sums[0], sums[1]);
      EXPECT_NE(registry.render().find(fmt::format(
                    "tessera_moe_fallback_total{{reason=\"no_room\"}} {}\n", required ? 0 : 1)),
                std::string::npos);
    }
  }
}

// Whoever is first computes the pairs of a late job, the other one's sums are used nowhere.
TEST(Dispatcher, ALateJobIsWhosIsFirst) {
  const ModelSpec spec = spec_of();
  const ShardLayout layout = layout_of(std::vector<ExpertHome>(kExperts, ExpertHome::worker(0)));
  struct Case {
    int looks;  // until the worker's sums are there
    std::optional<ErrorCode> then{};
    bool required = false;
    unsigned host_wins = 0, worker_wins = 0;
    int given_up = 0;
    unsigned deadline = 0, unavailable = 0;
  };
  for (const Case& c : {Case{.looks = 0}, Case{.looks = 3, .worker_wins = 1},
                        Case{.looks = 1000, .host_wins = 1, .given_up = 1, .deadline = 1},
                        Case{.looks = 3, .then = ErrorCode::unavailable, .unavailable = 1},
                        Case{.looks = 1000, .required = true}}) {
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    FakeExecutor::Script script;
    int looks = 0;
    script.on_wait = [&] { return looks++ >= c.looks; };
    script.on_collect = [&] { return c.then; };
    DispatcherParts parts{.options = {.required = c.required},
                          .host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                          .metrics = &metrics};
    const auto* worker = static_cast<const FakeExecutor*>(
        parts.workers.emplace_back(std::make_unique<FakeExecutor>("worker:0", script)).get());
    Dispatcher dispatcher(spec, layout, std::move(parts));
    FakeDevice device;
    std::mt19937 random(3);
    fill(device, random, kRows);
    std::vector<float> expected(device.rows.size(), 0.0f);
    add_pairs(device.pairs, device.rows, expected.data());
    ASSERT_TRUE(dispatcher.compute(device, 1));
    EXPECT_EQ(device.sums, expected);
    EXPECT_TRUE(worker->idle());
    EXPECT_EQ(worker->given_up, c.given_up);
    EXPECT_EQ(looks > 0, !c.required);
    EXPECT_LE(looks, 10) << "once before, and before each of some parts";
    EXPECT_EQ(metrics.host.pairs.value() + metrics.worker.pairs.value(), device.pairs.size());
    const std::string page = registry.render();
    for (const auto& [line, count] :
         {std::pair("tessera_moe_races_total{winner=\"host\"}", c.host_wins),
          std::pair("tessera_moe_races_total{winner=\"worker\"}", c.worker_wins),
          std::pair("tessera_moe_fallback_total{reason=\"deadline\"}", c.deadline),
          std::pair("tessera_moe_fallback_total{reason=\"unavailable\"}", c.unavailable)})
      EXPECT_NE(page.find(fmt::format("{} {}\n", line, count)), std::string::npos) << line;
  }
}

// Else an answer would tell whether a worker was late.
TEST(Dispatcher, WhoComputesForAWorkerRoundsAsItDoes) {
  const ModelSpec spec = spec_of();
  std::vector<ExpertHome> homes(kExperts, ExpertHome::worker(0));
  for (int e = 0; e < kExperts; e += 3) homes[static_cast<std::size_t>(e)] = ExpertHome::host();
  const ShardLayout layout = layout_of(homes);
  const auto fails = [](ErrorCode code) {
    return [code]() -> std::optional<ErrorCode> { return code; };
  };
  const auto run = [&](FakeExecutor::Script script, std::chrono::microseconds patience) {
    script.rounds = true;
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    DispatcherParts parts{.options = {.patience = patience},
                          .host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                          .metrics = &metrics};
    parts.workers.push_back(std::make_unique<FakeExecutor>("worker:0", std::move(script)));
    Dispatcher dispatcher(spec, layout, std::move(parts));
    EXPECT_TRUE(dispatcher.measure_host());
    FakeDevice device;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> sums;
    for (int step = 0; step < 40; ++step) {
      fill(device, random, kRows);
      for (float& value : device.rows) value = normal(random);
      EXPECT_TRUE(dispatcher.compute(device, 1));
      sums.insert(sums.end(), device.sums.begin(), device.sums.end());
    }
    return std::pair(sums, metrics.totals().fallbacks);
  };
  constexpr std::chrono::hours kPatient{1};
  const auto [healthy, none] = run({}, kPatient);
  EXPECT_EQ(none, 0);
  FakeExecutor::Script away, late, raced;
  away.on_submit = fails(ErrorCode::unavailable);
  late.on_collect = fails(ErrorCode::cancelled);
  raced.on_wait = [] { return false; };
  for (const FakeExecutor::Script& script : {away, late, raced}) {
    const auto [sums, fallbacks] = run(script, kPatient);
    EXPECT_GT(fallbacks, 0);
    EXPECT_TRUE(sums == healthy);
  }
  FakeExecutor::Script slow;
  slow.on_collect = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return std::nullopt;
  };
  const auto [sums, passed_over] = run(slow, std::chrono::milliseconds(1));
  EXPECT_GT(passed_over, 0);
  EXPECT_TRUE(sums == healthy);
}

// A request of 200 layers pays for a slow worker some times, and the host computes its pairs; where
// the worker is required it pays each time.
TEST(Dispatcher, ASlowWorkerIsPassedOverUntilItIsFastAgain) {
  const ModelSpec spec = spec_of();
  std::vector<ExpertHome> homes(kExperts, ExpertHome::worker(0));
  for (int e = 0; e < kExperts; e += 3) homes[static_cast<std::size_t>(e)] = ExpertHome::host();
  const ShardLayout layout = layout_of(homes);
  for (const bool required : {false, true}) {
    MetricsRegistry registry;
    ExpertMetrics metrics(registry);
    bool slow = true;
    FakeExecutor::Script host, script;
    host.compute_us = 2000;
    script.on_collect = [&]() -> std::optional<ErrorCode> {
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(15));
      return std::nullopt;
    };
    DispatcherParts parts{
        .options = {.required = required, .patience = std::chrono::milliseconds(30)},
        .host = std::make_unique<FakeExecutor>("host", host),
        .metrics = &metrics};
    const auto* worker = static_cast<FakeExecutor*>(
        parts.workers.emplace_back(std::make_unique<FakeExecutor>("worker:0", script)).get());
    Dispatcher dispatcher(spec, layout, std::move(parts));
    ASSERT_TRUE(dispatcher.measure_host());
    FakeDevice device;
    std::mt19937 random(3);
    const auto run = [&](int layers) {
      for (int i = 0; i < layers; ++i) {
        fill(device, random, 2);
        std::vector<float> expected(device.rows.size(), 0.0f);
        add_pairs(device.pairs, device.rows, expected.data());
        ASSERT_TRUE(dispatcher.compute(device, 1));
        ASSERT_EQ(device.sums, expected);
      }
    };
    run(required ? 30 : 200);
    const auto passed = [&] { return metrics.totals().fallbacks; };
    if (required) {
      EXPECT_EQ(worker->taken, 30);
      EXPECT_EQ(passed(), 0);
      EXPECT_TRUE(dispatcher.away().empty());
      continue;
    }
    EXPECT_LT(worker->taken, 20);
    EXPECT_GT(passed(), 180);
    EXPECT_NE(registry.render().find(
                  fmt::format("tessera_moe_fallback_total{{reason=\"slow\"}} {}\n", passed())),
              std::string::npos);
    // Its pause may be over just now; the next one is longer.
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    const auto in_time = [&] { return std::chrono::steady_clock::now() < end; };
    std::vector<std::string> away = dispatcher.away();
    for (; away.empty() && in_time(); away = dispatcher.away()) run(1);
    ASSERT_EQ(away.size(), 1u);
    EXPECT_EQ(away.front(),
              "worker:0 is passed over for jobs of up to 16 pairs: the host is faster");
    slow = false;
    int taken = 0;
    while (taken < 10 && in_time()) {
      const int before = worker->taken;
      run(10);
      taken = worker->taken - before;
    }
    EXPECT_EQ(taken, 10);
  }
}

}  // namespace
}  // namespace tessera
