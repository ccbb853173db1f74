#include "experts/dispatcher.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <random>
#include <thread>

namespace tessera {
namespace {

constexpr int kEmbd = 3;
constexpr int kExperts = 300;  // more than 256
constexpr int kUsed = 4;
constexpr int kRows = 40;

// "Experts" whose result is known: row x (expert + 1).
template <typename Sum>
void add_pairs(std::span<const RoutedPair> pairs, std::span<const float> rows, Sum* sums) {
  for (const RoutedPair& pair : pairs)
    for (int c = 0; c < kEmbd; ++c)
      sums[pair.row * kEmbd + c] += pair.weight * static_cast<float>(pair.expert + 1) *
                                    rows[static_cast<std::size_t>(pair.row * kEmbd + c)];
}

class FakeDevice final : public Device {
 public:
  std::string name() const override { return "fake"; }
  Status load(const Model&, const ShardLayout&, const LoadProgress&) override { return {}; }
  void begin(const BatchView&) override {}
  void embed() override {}
  void mixer(int) override {}
  void route(int) override {}
  void experts(int, std::span<const RoutedPair> pairs) override {
    EXPECT_FALSE(summed);
    std::this_thread::sleep_for(takes);
    add_pairs(pairs, rows, sums.data());
    resident_pairs += pairs.size();
  }
  void all_experts(int layer) override { experts(layer, pairs); }
  void dense(int) override { ++dense_calls; }
  std::span<const float> expert_rows(int) override { return rows; }
  void add_expert_sums(int, std::span<const std::int32_t> to,
                       std::span<const double> from) override {
    summed = true;
    ASSERT_EQ(from.size(), to.size() * kEmbd);
    for (std::size_t i = 0; i < to.size(); ++i)
      for (std::size_t c = 0; c < kEmbd; ++c)
        sums[static_cast<std::size_t>(to[i]) * kEmbd + c] +=
            static_cast<float>(from[i * kEmbd + c]);
  }
  void finish_ffn(int) override {}
  void head() override {}
  std::span<const float> logits() override { return {}; }
  std::span<const RoutedPair> routed_pairs() override { return pairs; }
  void read_hidden(std::span<float>) override {}
  void write_hidden(std::span<const float>) override {}
  void reset_slot(int) override {}
  void copy_slot(int, int) override {}
  void copy_page(int, int, int) override {}

  std::vector<float> rows, sums;
  std::vector<RoutedPair> pairs;
  std::size_t resident_pairs = 0;
  int dense_calls = 0;
  std::chrono::milliseconds takes{0};
  bool summed = false;
};

// Takes and computes jobs as a script says.
class FakeExecutor final : public ExpertExecutor {
 public:
  struct Script {
    ExpertLimits limits{.max_rows = kRows, .max_pairs = kRows * kUsed, .jobs = 1};
    std::function<std::optional<ErrorCode>()> on_submit = [] { return std::nullopt; };
    std::function<std::optional<ErrorCode>()> on_collect = [] { return std::nullopt; };
    std::int64_t compute_us = 5;
    const ExpertTable* table = nullptr;
    std::function<bool(ExpertHome)> owns = [](ExpertHome) { return true; };
  };
  FakeExecutor(std::string name, Script script)
      : name_(std::move(name)), script_(std::move(script)) {}

  std::string name() const override { return name_; }
  ExpertLimits limits() const override { return script_.limits; }
  Status submit(const ExpertJob& job) override {
    if (static_cast<int>(jobs_.size()) == script_.limits.jobs)
      return Error::make(ErrorCode::exhausted, "full");
    if (const auto code = script_.on_submit()) return Error::make(*code, "scripted");
    EXPECT_LE(job.n_rows, script_.limits.max_rows);
    EXPECT_LE(job.pairs.size(), static_cast<std::size_t>(script_.limits.max_pairs));
    EXPECT_EQ(job.rows.size(), static_cast<std::size_t>(job.n_rows * kEmbd));
    for (const RoutedPair& pair : job.pairs) {
      EXPECT_TRUE(pair.row >= 0 && pair.row < job.n_rows);
      EXPECT_TRUE(script_.table == nullptr ||
                  script_.owns(script_.table->home(job.layer, pair.expert)));
    }
    jobs_.push_back(job);
    host_us = job.host_us;
    most_rows = std::max(most_rows, job.n_rows);
    ++taken;
    return {};
  }
  Result<ExpertReport> collect(std::span<double> sums) override {
    const ExpertJob job = jobs_.front();
    jobs_.pop_front();
    std::fill(sums.begin(), sums.end(), 99.0);
    if (const auto code = script_.on_collect()) return Error::make(*code, "scripted");
    std::fill(sums.begin(), sums.end(), 0.0);
    add_pairs(job.pairs, job.rows, sums.data());
    return ExpertReport{.compute_us = script_.compute_us, .bytes_sent = 10, .bytes_received = 20};
  }
  void drop() override { jobs_.clear(); }
  bool idle() const { return jobs_.empty(); }

  int most_rows = 0;
  int taken = 0;
  double host_us = 0;  // of the last job

 private:
  std::string name_;
  Script script_;
  std::deque<ExpertJob> jobs_;
};

ModelSpec spec_of() {
  ModelSpec spec;
  spec.n_embd = kEmbd;
  spec.layers.resize(2);
  spec.layers[1].moe = MoeSpec{.n_expert = kExperts, .n_used = kUsed};
  return spec;
}

ShardLayout layout_of(std::vector<ExpertHome> homes, int spare = 0) {
  ShardLayout layout;
  layout.end_layer = 2;
  layout.max_rows = kRows;
  layout.experts.resize(2);
  layout.experts[1] = {.home = std::move(homes), .spare = spare};
  return layout;
}

std::vector<ExpertHome> random_homes(std::mt19937& random, int workers) {
  std::vector<ExpertHome> homes;
  for (int e = 0; e < kExperts; ++e) {
    const int pick = static_cast<int>(random() % static_cast<unsigned>(workers + 2));
    homes.push_back(pick == 0   ? ExpertHome::resident()
                    : pick == 1 ? ExpertHome::host()
                                : ExpertHome::worker(pick - 2));
  }
  return homes;
}

void fill(FakeDevice& device, std::mt19937& random, int n_rows) {
  device.rows.resize(static_cast<std::size_t>(n_rows * kEmbd));
  for (float& x : device.rows) x = static_cast<float>(random() % 7) - 3.0f;
  device.pairs.clear();
  for (int row = 0; row < n_rows; ++row)
    for (int slot = 0; slot < kUsed; ++slot)
      device.pairs.push_back({.row = row,
                              .expert = static_cast<int>(random() % kExperts),
                              .slot = slot,
                              .weight = static_cast<float>(random() % 5)});
  device.sums.assign(device.rows.size(), 0.0f);
  device.summed = false;
}

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
      if (!table.all_resident(1)) pairs += device.pairs.size();
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
  split.assign(table, 1, device.pairs);
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
    DispatcherParts parts{.host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                          .metrics = &metrics};
    parts.workers.push_back(std::make_unique<FakeExecutor>("worker:0", script));
    Dispatcher dispatcher(spec, layout, std::move(parts));
    FakeDevice device;
    std::mt19937 random(3);
    fill(device, random, 1);
    ASSERT_TRUE(dispatcher.compute(device, 1));
    EXPECT_NE(registry.render().find(fmt::format("tessera_moe_fallback_total{{reason=\"{}\"}} 1\n",
                                                 taken ? "not_finite" : "refused")),
              std::string::npos);
  }
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
    ASSERT_EQ(dispatcher.away().size(), 1u);
    EXPECT_EQ(dispatcher.away().front(),
              "worker:0 is passed over for jobs of up to 16 pairs: the host is faster");
    slow = false;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!dispatcher.away().empty() && std::chrono::steady_clock::now() < end) run(1);
    const int before = worker->taken;
    run(10);
    EXPECT_EQ(worker->taken, before + 10);
  }
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
    slow.on_collect = []() -> std::optional<ErrorCode> {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return std::nullopt;
    };
    slow.compute_us = done.compute_us = 200'000;
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
    ASSERT_TRUE(dispatcher.compute(device, 1));
    EXPECT_GE(metrics.worker.hidden_us.value(), 1000u * static_cast<unsigned>(work_ms));
    EXPECT_LT(metrics.worker.hidden_us.value(), 1000u * static_cast<unsigned>(work_ms) + 100'000u);
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
  DispatcherParts parts{.host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                        .metrics = &metrics};
  parts.workers.push_back(std::make_unique<FakeExecutor>("worker:0", script));
  Dispatcher dispatcher(spec, layout, std::move(parts));
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

TEST(ExpertTable, ExpertsComeAndGoToWhereTheyBelong) {
  std::vector<ExpertHome> homes(kExperts, ExpertHome::worker(1));
  homes[0] = ExpertHome::resident();
  ExpertTable table(layout_of(homes, /*spare=*/1));
  EXPECT_EQ(table.workers(), 2);
  EXPECT_TRUE(table.all_resident(0));
  table.admit(1, 5);
  EXPECT_TRUE(table.home(1, 5).is_resident());
  EXPECT_EQ(table.spare(1), 0);
  table.release(1, 5);
  EXPECT_EQ(table.spare(1), 1);
  table.admit(1, 6);
  EXPECT_EQ(table.home(1, 5), ExpertHome::worker(1));
  table.release(1, 0);
  table.admit(1, 5);
  EXPECT_EQ(table.home(1, 0), ExpertHome::host());
  table.release(1, 6);
  table.admit(1, 0);
  EXPECT_TRUE(table.home(1, 0).is_resident());
}

}  // namespace
}  // namespace tessera
