// Experts on a GPU without their layers, as a worker has them, against those of the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "experts/expert_holder.h"
#include "experts/expert_worker.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/typed_model.h"

namespace tessera::testing {
namespace {

constexpr int kMaxRows = 40;

// Two of three experts of each layer but the second, which has none here, and the third, which has
// them all.
ExpertSetLayout some_experts(const ModelSpec& spec) {
  std::vector<LayerExperts> homes;
  for (int l = 0; l < spec.n_layer(); ++l) {
    LayerExperts& layer = homes.emplace_back();
    for (int e = 0; e < spec.layers[static_cast<std::size_t>(l)].moe->n_expert; ++e)
      layer.home.push_back(l == 2 || (l != 1 && e % 3 != 0) ? ExpertHome::worker(0)
                                                            : ExpertHome::host());
  }
  return expert_worker_layout(spec, homes, ExpertHome::worker(0), kMaxRows);
}

ExpertHolderOptions holder_on_gpu() {
  return {.kind = test_gpu().name->kind,
          .number = *test_gpu().name->team,
          .threads = 2,
          .gpu_plugins = plugin_folder()};
}

// Rows with none to all of their experts here, one of which may stand twice.
struct Job {
  Job(const ModelSpec& spec, int layer, int n_rows) {
    std::mt19937 random(static_cast<unsigned>(7 * n_rows + layer));
    std::normal_distribution<float> value;
    const MoeSpec& moe = *spec.layers[static_cast<std::size_t>(layer)].moe;
    for (int i = 0; i < n_rows * spec.n_embd; ++i) rows.push_back(value(random));
    for (std::int32_t row = 0; row < n_rows; ++row)
      for (auto n = static_cast<int>(random() % static_cast<unsigned>(moe.n_used + 1)); n > 0; --n)
        pairs.push_back({.row = row,
                         .expert = static_cast<std::int32_t>(
                             1 + 3 * (random() % static_cast<unsigned>(moe.n_expert / 3))),
                         .weight = 0.1f + static_cast<float>(random() % 8) / 8});
    job = {.layer = layer, .n_rows = n_rows, .rows = rows, .pairs = pairs};
  }
  std::vector<float> rows;
  std::vector<RoutedPair> pairs;
  ExpertJob job;
};

std::vector<double> sums_of(ExpertHolder& holder, const ExpertJob& job) {
  std::vector<double> sums(job.rows.size(), NAN);
  EXPECT_TRUE(holder.check(job));
  const Status done = holder.compute(job, sums);
  EXPECT_TRUE(done) << done.error().message;
  return sums;
}

TEST(GpuExperts, SumsAreThoseOfTheCpu) {
  GPU_OR_SKIP();
  for (const BlockType type : {BlockType::Q4_K, BlockType::Q8_0}) {
    const TypedModel file("qwen35moe", type, {"block_count=4", "expert_count=24"});
    const Result<Model> model = Model::open(file.path());
    ASSERT_TRUE(model);
    const ExpertSetLayout layout = some_experts(model->spec());
    const auto cpu = load_experts(*model, layout, {.threads = 2});
    const auto gpu = load_experts(*model, layout, holder_on_gpu());
    ASSERT_TRUE(cpu && gpu) << (gpu ? "" : gpu.error().message);
    for (const int layer : {0, 2, 3})
      for (const int rows : {1, 2, 8, 9, kMaxRows}) {
        const Job job(model->spec(), layer, rows);
        const std::vector<double> expected = sums_of(**cpu, job.job);
        const std::vector<double> got = sums_of(**gpu, job.job);
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          difference += (got[i] - expected[i]) * (got[i] - expected[i]);
          norm += expected[i] * expected[i];
        }
        EXPECT_LE(std::sqrt(difference), 2e-2 * std::sqrt(norm)) << layer << ", " << rows;
      }
  }
}

// Alone and among others, as a row of a token is.
TEST(GpuExperts, FewRowsHaveTheBitsOfEachAlone) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=4", "expert_count=24"});
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  const auto gpu = load_experts(*model, some_experts(model->spec()), holder_on_gpu());
  ASSERT_TRUE(gpu);
  const Job job(model->spec(), 0, 8);
  const std::vector<double> all = sums_of(**gpu, job.job);
  const auto n = static_cast<std::size_t>(model->spec().n_embd);
  for (std::int32_t row = 0; row < 8; ++row) {
    std::vector<RoutedPair> pairs;
    for (const RoutedPair& pair : job.pairs)
      if (pair.row == row)
        pairs.push_back({.row = 0, .expert = pair.expert, .weight = pair.weight});
    const auto at = static_cast<std::size_t>(row) * n;
    const std::vector<double> alone = sums_of(
        **gpu,
        {.layer = 0, .n_rows = 1, .rows = std::span(job.rows).subspan(at, n), .pairs = pairs});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + static_cast<long>(at))) << row;
  }
}

TEST(GpuExperts, RefuseWhatTheyDoNotHave) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=4", "expert_count=24"});
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  const auto gpu = load_experts(*model, some_experts(model->spec()), holder_on_gpu());
  ASSERT_TRUE(gpu);
  const Job job(model->spec(), 0, 1);
  const auto refused = [&](int layer, std::vector<RoutedPair> pairs) {
    const Status status = (*gpu)->check(
        {.layer = layer, .n_rows = 1, .rows = std::span<const float>(job.rows), .pairs = pairs});
    return status ? ErrorCode::internal : status.error().code;
  };
  EXPECT_EQ(refused(0, {{.expert = 0}}), ErrorCode::not_found);
  EXPECT_EQ(refused(1, {{.expert = 1}}), ErrorCode::invalid);
  const int used = model->spec().layers.front().moe->n_used;
  const std::vector<RoutedPair> many(static_cast<std::size_t>(used) + 1, RoutedPair{.expert = 1});
  EXPECT_EQ(refused(0, many), ErrorCode::invalid);
}

TEST(GpuExperts, TakeWhatTheFootprintSays) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=4", "expert_count=96"});
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  const ExpertSetLayout layout = some_experts(model->spec());
  const std::int64_t planned = expert_worker_footprint(*model, layout, 2, true).total();
  const std::int64_t before = free_bytes();
  const auto gpu = load_experts(*model, layout, holder_on_gpu());
  ASSERT_TRUE(gpu);
  const std::int64_t taken = before - free_bytes();
  // The driver hands out memory in pieces of 2 MiB, and keeps some for itself.
  EXPECT_GE(taken, planned - (std::int64_t{4} << 20));
  EXPECT_LE(taken, planned + (std::int64_t{256} << 20));
}

}  // namespace
}  // namespace tessera::testing
