// Ten thousand jobs of varied shapes at a worker of experts, over each transport: neither end comes
// to hold more memory for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/worker/expert_rig.h"

namespace tessera::testing {
namespace {

constexpr int kJobs = 10'000 / kTimeScale, kWarm = kJobs / 10, kMostRows = 64;
constexpr long kNoiseKib = 128;

const std::string& path() {
  static const std::string file = TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf";
  return file;
}

// A layer, one to 64 rows, and of each row one expert or more, all at random.
class Shapes {
 public:
  explicit Shapes(const ModelSpec& spec)
      : spec_(spec), rows_(kMostRows * static_cast<std::size_t>(spec.n_embd), 0.25f) {
    while (!spec_.layers[static_cast<std::size_t>(first_)].moe) ++first_;
    experts_.resize(static_cast<std::size_t>(moe(first_).n_expert));
    std::iota(experts_.begin(), experts_.end(), 0);
  }
  ExpertJob next() {
    int layer = first_ + up_to(spec_.n_layer() - first_ - 1);
    if (!spec_.layers[static_cast<std::size_t>(layer)].moe) layer = first_;
    const int n_rows = 1 + up_to(kMostRows - 1);
    pairs_.clear();
    for (int row = 0; row < n_rows; ++row) {
      std::shuffle(experts_.begin(), experts_.end(), random_);
      const int used = 1 + up_to(moe(layer).n_used - 1);
      for (int slot = 0; slot < used; ++slot)
        pairs_.push_back({.row = row,
                          .expert = experts_[static_cast<std::size_t>(slot)],
                          .slot = slot,
                          .weight = 0.5f});
    }
    return {.layer = layer,
            .n_rows = n_rows,
            .rows = std::span(rows_).first(static_cast<std::size_t>(n_rows * spec_.n_embd)),
            .pairs = pairs_};
  }

 private:
  const MoeSpec& moe(int layer) const { return *spec_.layers[static_cast<std::size_t>(layer)].moe; }
  int up_to(int most) { return static_cast<int>(random_() % static_cast<unsigned>(most + 1)); }

  const ModelSpec& spec_;
  std::vector<float> rows_;
  int first_ = 0;  // layer with experts
  std::vector<int> experts_;
  std::vector<RoutedPair> pairs_;
  std::mt19937 random_{11};
};

class ManyShapes : public ::testing::TestWithParam<Link> {};
INSTANTIATE_TEST_SUITE_P(, ManyShapes, ::testing::Values(Link::shared, Link::stream),
                         link_param_name);

TEST_P(ManyShapes, TakeNoMemory) {
  const Model model = *Model::open(path());
  std::vector<LayerExperts> experts(model.spec().layers.size());
  for (std::size_t l = 0; l < experts.size(); ++l)
    if (const auto& moe = model.spec().layers[l].moe)
      experts[l].home.assign(static_cast<std::size_t>(moe->n_expert), ExpertHome::worker(0));
  ExpertRig rig;
  rig.link = GetParam();
  rig.waits_for_its_worker();
  const auto connection = *worker::ExpertConnection::create(
      rig.site(0, path()),
      {.experts = experts, .max_rows = kMostRows, .required = rig.options.required}, model,
      rig.registry);
  ASSERT_TRUE(connection->wait_ready());
  const auto executor = connection->executor();
  Shapes shapes(model.spec());
  std::vector<double> sums(kMostRows * static_cast<std::size_t>(model.spec().n_embd));
  long here = 0, there = 0;
  for (int i = 0; i < kWarm + kJobs; ++i) {
    if (i == kWarm) here = resident_kib(), there = resident_kib(rig.pid());
    const ExpertJob job = shapes.next();
    ASSERT_TRUE(executor->submit(job)) << i;
    ASSERT_TRUE(executor->collect(std::span(sums).first(job.rows.size()))) << i;
  }
  const long here_after = resident_kib(), there_after = resident_kib(rig.pid());
  std::printf("%s: %d jobs: client %ld KiB, then %ld, worker %ld, then %ld\n",
              link_name(GetParam()), kJobs, here, here_after, there, there_after);
  // A sanitizer keeps what was freed.
  if (kTimeScale == 1) {
    EXPECT_LE(here_after, here + kNoiseKib);
    EXPECT_LE(there_after, there + kNoiseKib);
  }
}

}  // namespace
}  // namespace tessera::testing
