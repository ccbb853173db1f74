// A device and executors whose experts' results are known, and layers to dispatch, for tests.
//
//   parts.workers.push_back(std::make_unique<FakeExecutor>("worker:0", script));
//   fill(device, random, kRows);
//   dispatcher.compute(device, 1);                       // layer 1 has the experts
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "experts/dispatcher.h"

namespace tessera {

inline constexpr int kEmbd = 3;
inline constexpr int kExperts = 300;  // more than 256
inline constexpr int kUsed = 4;
inline constexpr int kRows = 40;

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
  std::span<const float> expert_rows(int) override {
    ++rows_given;
    return rows;
  }
  std::span<const std::uint8_t> streamable(int) override { return fetchable; }
  int least_streamed_rows() const override { return least_rows; }
  double stream_us(int, int experts) override { return crossing_us * experts; }
  void stream_experts(int, std::span<const RoutedPair> given) override {
    EXPECT_FALSE(summed);
    EXPECT_GT(dense_calls, 0);
    std::vector<bool> seen(kExperts);
    for (const RoutedPair& pair : given) {
      const auto expert = static_cast<std::size_t>(pair.expert);
      EXPECT_EQ(fetchable[expert], 1);
      fetched.experts += seen[expert] ? 0 : 1;
      fetched.bytes += seen[expert] ? 0 : 10;
      seen[expert] = true;
    }
    add_pairs(given, rows, sums.data());
    streamed_pairs += given.size();
  }
  StreamedExperts streamed() const override { return fetched; }
  void divide_reads(std::span<const std::uint8_t> given) override {
    reads.assign(given.begin(), given.end());
  }
  bool foresee_experts() override { return foresees; }
  ForeseenExperts foreseen() override { return {.layer = 1, .experts = coming}; }
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
  void copy_slot(const StateCopy&) override {}
  void copy_page(int, const StateCopy&) override {}
  void begin_replace_expert(const ExpertMove&) override { ++moves; }
  Status fault() override { return lost; }
  Result<bool> expert_replaced() override {
    if (!copy_fails) return true;
    return Error::make(*copy_fails, "scripted");
  }

  std::vector<float> rows, sums;
  std::vector<RoutedPair> pairs;
  std::size_t resident_pairs = 0;
  std::size_t streamed_pairs = 0;
  std::vector<std::uint8_t> fetchable;  // empty: no expert
  int least_rows = 0;
  double crossing_us = 1.0;  // of one expert
  std::vector<std::uint8_t> reads;
  bool foresees = false;
  std::vector<std::int32_t> coming;  // foreseen
  StreamedExperts fetched;
  int rows_given = 0;
  int dense_calls = 0;
  std::chrono::milliseconds takes{0};
  bool summed = false;
  int moves = 0;
  std::optional<ErrorCode> copy_fails;
  Status lost;
};

// Takes and computes jobs as a script says.
class FakeExecutor final : public ExpertExecutor {
 public:
  struct Script {
    ExpertLimits limits{.max_rows = kRows, .max_pairs = kRows * kUsed, .jobs = 1};
    std::function<std::optional<ErrorCode>()> on_submit = [] { return std::nullopt; };
    std::function<std::optional<ErrorCode>()> on_collect = [] { return std::nullopt; };
    std::function<bool()> on_wait = [] { return true; };
    std::int64_t compute_us = 5;
    bool rounds = false;  // rows and sums to quarters
    const ExpertTable* table = nullptr;
    std::function<bool(ExpertHome)> owns = [](ExpertHome) { return true; };
    std::function<bool(int)> has = [](int) { return true; };
  };
  FakeExecutor(std::string name, Script script)
      : name_(std::move(name)), script_(std::move(script)) {}

  std::string name() const override { return name_; }
  ExpertLimits limits() const override { return script_.limits; }
  bool has(int layer) const override { return script_.has(layer); }
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
                  script_.owns(script_.table->layer(job.layer).home(pair.expert)));
    }
    jobs_.push_back(job);
    host_us = job.host_us;
    most_rows = std::max(most_rows, job.n_rows);
    ++taken;
    return {};
  }
  bool rounds() const override { return script_.rounds; }
  void round_rows(std::span<float> rows) override {
    for (float& value : rows) value = std::round(value * 4.0f) / 4.0f;
  }
  void round_sums(std::span<double> sums) override {
    for (double& value : sums) value = std::round(value * 4.0) / 4.0;
  }
  Clock::time_point expected() const override { return Clock::time_point::min(); }
  bool wait(Clock::time_point) override { return script_.on_wait(); }
  Result<ExpertReport> collect(std::span<double> sums) override {
    const ExpertJob job = jobs_.front();
    jobs_.pop_front();
    std::fill(sums.begin(), sums.end(), 99.0);
    if (const auto code = script_.on_collect()) return Error::make(*code, "scripted");
    std::fill(sums.begin(), sums.end(), 0.0);
    std::vector<float> rows(job.rows.begin(), job.rows.end());
    if (script_.rounds) round_rows(rows);
    add_pairs(job.pairs, rows, sums.data());
    if (script_.rounds) round_sums(sums);
    return ExpertReport{.compute_us = script_.compute_us, .bytes_sent = 10, .bytes_received = 20};
  }
  bool foresee(int layer, std::span<const std::int32_t> experts) override {
    EXPECT_TRUE(jobs_.empty());
    foreseen_layer = layer;
    foreseen.assign(experts.begin(), experts.end());
    return takes_hints;
  }
  void drop() override { jobs_.clear(); }
  void give_up() override {
    jobs_.pop_front();
    ++given_up;
  }
  bool idle() const { return jobs_.empty(); }

  int most_rows = 0;
  int taken = 0;
  int given_up = 0;
  double host_us = 0;  // of the last job
  bool takes_hints = true;
  int foreseen_layer = -1;
  std::vector<std::int32_t> foreseen;

 private:
  std::string name_;
  Script script_;
  std::deque<ExpertJob> jobs_;
};

inline ModelSpec spec_of() {
  ModelSpec spec;
  spec.n_embd = kEmbd;
  spec.layers.resize(2);
  spec.layers[1].moe = MoeSpec{.n_expert = kExperts, .n_used = kUsed};
  return spec;
}

inline ShardLayout layout_of(std::vector<ExpertHome> homes, int spare = 0) {
  ShardLayout layout;
  layout.end_layer = 2;
  layout.max_rows = kRows;
  layout.experts.resize(2);
  layout.experts[1] = {.home = std::move(homes), .spare = spare};
  return layout;
}

inline std::vector<ExpertHome> random_homes(std::mt19937& random, int workers) {
  std::vector<ExpertHome> homes;
  for (int e = 0; e < kExperts; ++e) {
    const int pick = static_cast<int>(random() % static_cast<unsigned>(workers + 2));
    homes.push_back(pick == 0   ? ExpertHome::resident()
                    : pick == 1 ? ExpertHome::host()
                                : ExpertHome::worker(pick - 2));
  }
  return homes;
}

inline void fill(FakeDevice& device, std::mt19937& random, int n_rows) {
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

// The host, and one worker that does what the script says.
inline DispatcherParts host_and_worker(FakeExecutor::Script script, ExpertMetrics& metrics) {
  DispatcherParts parts{.host = std::make_unique<FakeExecutor>("host", FakeExecutor::Script{}),
                        .metrics = &metrics};
  parts.workers.push_back(std::make_unique<FakeExecutor>("worker:0", std::move(script)));
  return parts;
}

}  // namespace tessera
