#include "experts/measure_host.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera {
namespace {

Model golden(const std::string& name) {
  Result<Model> model = Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/" + name + "-bf16.gguf");
  EXPECT_TRUE(model) << model.error().message;
  return *std::move(model);
}

constexpr double kCall_s = 20e-6, kJob_s = 300e-6;

// Takes what it says by a clock that stands still otherwise: how many jobs came before is given.
class TimedExecutor final : public ExpertExecutor {
 public:
  using Takes = std::function<double(int before, bool call)>;
  explicit TimedExecutor(Takes takes) : takes_(std::move(takes)) {}

  std::string name() const override { return "timed"; }
  ExpertLimits limits() const override { return {.max_rows = 1, .max_pairs = 64}; }
  Status submit(const ExpertJob& job) override {
    EXPECT_EQ(job.n_rows, 1);
    now_ += takes_(jobs_++, job.pairs.empty());
    return {};
  }
  Result<ExpertReport> collect(std::span<double> sums) override {
    std::fill(sums.begin(), sums.end(), 0.0);
    return ExpertReport{};
  }
  void drop() override {}

  Result<HostExpertTimes> measured(const Model& model) {
    return measure_host_experts(model, 0, *this, [&] { return now_; });
  }
  int jobs() const { return jobs_; }

 private:
  Takes takes_;
  double now_ = 1e6;
  int jobs_ = 0;
};

// What the experts of a row weigh that Rig measures with, by the times of a machine that is quiet.
double quiet_bytes(const Model& model) {
  TimedExecutor quiet([](int, bool call) { return call ? kCall_s : kJob_s; });
  const Result<HostExpertTimes> times = quiet.measured(model);
  EXPECT_TRUE(times);
  return times->bytes_per_s * (kJob_s - kCall_s);
}

TEST(MeasureHost, CountsTheBytesOfTheExpertsOfARow) {
  const Model model = golden("qwen35moe");
  const MoeSpec& moe = *model.spec().layers[0].moe;
  double bytes = 0;
  for (const TensorRole role : {TensorRole::moe_gate, TensorRole::moe_up, TensorRole::moe_down}) {
    const TensorSlice& slice = *model.find(role, 0);
    bytes += moe.n_used * static_cast<double>(slice.rows) *
             static_cast<double>(row_bytes(slice.type, slice.cols));
  }
  EXPECT_NEAR(quiet_bytes(model), bytes, 1e-6 * bytes);
}

TEST(MeasureHost, TheShortestOfEitherCounts) {
  const Model model = golden("qwen35moe");
  const double bytes = quiet_bytes(model);
  TimedExecutor noisy([](int before, bool call) {
    const double other = before % 7 == 0 ? 0.0 : 1e-3 * (before % 5 + 1);
    return (call ? kCall_s : kJob_s) + other;
  });
  const Result<HostExpertTimes> times = noisy.measured(model);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_NEAR(times->call_s, kCall_s, 1e-9);
  EXPECT_NEAR(times->bytes_per_s, bytes / (kJob_s - kCall_s), 1e-3 * times->bytes_per_s);
}

TEST(MeasureHost, CallsLongerThanJobsAreMeasuredAgain) {
  const Model model = golden("qwen35moe");
  TimedExecutor late([](int before, bool call) {
    if (!call) return kJob_s;
    return before < 200 ? 5e-3 : kCall_s;
  });
  const Result<HostExpertTimes> times = late.measured(model);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_NEAR(times->call_s, kCall_s, 1e-9);
}

TEST(MeasureHost, AMachineThatIsTooBusyIsTold) {
  const Model model = golden("qwen35moe");
  TimedExecutor busy([](int, bool call) { return call ? 4e-3 : 3e-3; });
  const Result<HostExpertTimes> times = busy.measured(model);
  ASSERT_FALSE(times);
  EXPECT_EQ(times.error().code, ErrorCode::internal);
  EXPECT_NE(times.error().message.find("is the machine busy?"), std::string::npos);
  EXPECT_LT(busy.jobs(), 10000);
}

// Of the host's own threads: what a busy machine's clock makes of it is either a pair of times or
// the line above.
TEST(MeasureHost, MeasuresTheHostsExecutor) {
  const Model model = golden("qwen35moe");
  for (const bool beside : {false, true}) {
    const Result<HostExpertTimes> times =
        measure_host_experts(model, {.threads = 2, .beside = beside});
    if (times)
      EXPECT_TRUE(usable(*times));
    else
      EXPECT_EQ(times.error().code, ErrorCode::internal) << times.error().message;
  }
}

TEST(MeasureHost, AModelWithoutExpertsHasNone) {
  const Model model = golden("qwen3");
  const Result<HostExpertTimes> times = measure_host_experts(model, {});
  ASSERT_FALSE(times);
  EXPECT_EQ(times.error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace tessera
