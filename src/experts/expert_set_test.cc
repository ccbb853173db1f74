#include "experts/expert_set.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "experts/host_executor.h"
#include "model/synth.h"

namespace tessera {
namespace {

struct Models {
  Model golden;
  Model quantised;
};

const Models& models() {
  static const Models* const kModels = [] {
    Result<Model> golden = Model::open(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf");
    const std::string path = ::testing::TempDir() + "expert_set_test.gguf";
    EXPECT_TRUE(write_synthetic_model({.preset = "tiny", .types = "q4_k_m"}, path, {}));
    Result<Model> quantised = Model::open(path);
    std::filesystem::remove(path);
    return new Models{*std::move(golden), *std::move(quantised)};
  }();
  return *kModels;
}

int moe_layer(const Model& model) {
  for (int l = 0; l < model.spec().n_layer(); ++l)
    if (model.spec().layers[static_cast<std::size_t>(l)].moe) return l;
  return -1;
}

const MoeSpec& moe_of(const Model& model) {
  return *model.spec().layers[static_cast<std::size_t>(moe_layer(model))].moe;
}

// Every third expert resident, none, or all of them; the rest in the file.
ExpertSetLayout set_layout(const Model& model, int resident_of_three, int max_rows = 64) {
  const MoeSpec& moe = moe_of(model);
  ExpertSetLayout layout{.first_layer = moe_layer(model),
                         .experts = {{}},
                         .max_rows = max_rows,
                         .max_pairs = max_rows * (moe.n_used + 1)};
  for (int e = 0; e < moe.n_expert; ++e)
    layout.experts[0].home.push_back(e % 3 < resident_of_three ? ExpertHome::resident()
                                                               : ExpertHome::host());
  return layout;
}

std::unique_ptr<ExpertSet> load(const Model& model, const ExpertSetLayout& layout,
                                int threads = 2) {
  auto team = std::make_shared<ThreadTeam>(ThreadTeamOptions{.threads = threads});
  auto set = ExpertSet::load(model, layout, {.team = team}, {});
  EXPECT_TRUE(set) << set.error().message;
  return *std::move(set);
}

// Rows with between none and n_used + 1 pairs each, an expert sometimes twice.
struct RandomJob {
  RandomJob(const Model& model, int n_rows, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const MoeSpec& moe = moe_of(model);
    rows.resize(static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(model.spec().n_embd));
    for (float& x : rows) x = normal(random);
    for (int row = 0; row < n_rows; ++row) {
      const int count = static_cast<int>(random() % static_cast<unsigned>(moe.n_used + 2));
      for (int slot = 0; slot < count; ++slot)
        pairs.push_back({.row = row,
                         .expert = static_cast<int>(random() % static_cast<unsigned>(moe.n_expert)),
                         .slot = slot,
                         .weight = normal(random)});
    }
    job = {.layer = moe_layer(model), .n_rows = n_rows, .rows = rows, .pairs = pairs};
  }
  std::vector<float> rows;
  std::vector<RoutedPair> pairs;
  ExpertJob job;
};

std::vector<double> compute(ExpertSet& set, const ExpertJob& job) {
  EXPECT_TRUE(set.check(job));
  std::vector<double> sums(job.rows.size(), 123.0);
  set.compute(job, sums);
  return sums;
}

// One expert by the definition, in double.
std::vector<double> expert_by_hand(const Model& model, int expert, std::span<const float> x) {
  const int layer = moe_layer(model);
  const auto product = [&](TensorRole role, std::span<const double> in) {
    const TensorSlice& slice = *model.find(role, layer);
    std::vector<float> row(static_cast<std::size_t>(slice.cols));
    std::vector<double> out;
    for (std::int64_t r = 0; r < slice.rows; ++r) {
      dequantize_row(slice.type, slice.data + expert * slice.matrix_stride + r * slice.row_stride,
                     slice.cols, row.data());
      double sum = 0.0;
      for (std::size_t c = 0; c < row.size(); ++c) sum += row[c] * in[c];
      out.push_back(sum);
    }
    return out;
  };
  const std::vector<double> in(x.begin(), x.end());
  std::vector<double> gate = product(TensorRole::moe_gate, in);
  const std::vector<double> up = product(TensorRole::moe_up, in);
  for (std::size_t i = 0; i < gate.size(); ++i)
    gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  return product(TensorRole::moe_down, gate);
}

TEST(ExpertSet, PackedAndInTheFileGiveTheSameBits) {
  for (const Model* model : {&models().golden, &models().quantised}) {
    auto resident = load(*model, set_layout(*model, 3));
    auto mixed = load(*model, set_layout(*model, 1));
    auto in_file = load(*model, set_layout(*model, 0), 3);
    for (const int rows : {1, 2, 17, 64}) {
      const RandomJob random(*model, rows, static_cast<unsigned>(rows));
      const std::vector<double> expected = compute(*resident, random.job);
      EXPECT_EQ(compute(*mixed, random.job), expected) << rows;
      EXPECT_EQ(compute(*in_file, random.job), expected) << rows;
    }
  }
}

TEST(ExpertSet, ComputesWhatTheDefinitionSays) {
  const Model& model = models().golden;
  auto set = load(model, set_layout(model, 1));
  const RandomJob random(model, 5, 7);
  const std::vector<double> got = compute(*set, random.job);
  const auto n = static_cast<std::size_t>(model.spec().n_embd);
  std::vector<double> expected(got.size(), 0.0);
  for (const RoutedPair& pair : random.pairs) {
    const auto at = static_cast<std::size_t>(pair.row) * n;
    const std::vector<double> out =
        expert_by_hand(model, pair.expert, std::span(random.rows).subspan(at, n));
    for (std::size_t i = 0; i < n; ++i) expected[at + i] += pair.weight * out[i];
  }
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 1e-4 * (1.0 + std::abs(expected[i])));
}

TEST(ExpertSet, ARowDoesNotDependOnTheOthers) {
  const Model& model = models().quantised;
  auto set = load(model, set_layout(model, 1));
  const RandomJob random(model, 40, 3);
  const std::vector<double> together = compute(*set, random.job);
  const auto n = static_cast<std::size_t>(model.spec().n_embd);
  for (int row = 0; row < 40; ++row) {
    std::vector<RoutedPair> pairs;
    for (RoutedPair pair : random.pairs)
      if (pair.row == row) {
        pair.row = 0;
        pairs.push_back(pair);
      }
    const auto at = static_cast<std::size_t>(row) * n;
    const ExpertJob one{.layer = random.job.layer,
                        .n_rows = 1,
                        .rows = std::span(random.rows).subspan(at, n),
                        .pairs = pairs};
    const std::vector<double> alone = compute(*set, one);
    EXPECT_TRUE(
        std::equal(alone.begin(), alone.end(), together.begin() + static_cast<std::ptrdiff_t>(at)))
        << row;
  }
}

TEST(ExpertSet, RowsWithoutPairsAreZeros) {
  const Model& model = models().golden;
  auto set = load(model, set_layout(model, 1));
  RandomJob random(model, 3, 1);
  random.job.pairs = {};
  for (const double x : compute(*set, random.job)) EXPECT_EQ(x, 0.0);
}

TEST(ExpertSet, RefusesWhatItCannotCompute) {
  const Model& model = models().golden;
  ExpertSetLayout layout = set_layout(model, 1, 4);
  layout.experts[0].home[2] = ExpertHome::worker(1);
  auto set = load(model, layout);
  RandomJob random(model, 4, 1);
  random.pairs = {{.row = 1, .expert = 0, .slot = 0, .weight = 1.0f}};
  const auto code = [&](ExpertJob job) {
    const Status status = set->check(job);
    return status ? ErrorCode::internal : status.error().code;
  };
  random.job.pairs = random.pairs;
  EXPECT_TRUE(set->check(random.job));
  ExpertJob job = random.job;
  job.layer += 1;
  EXPECT_EQ(code(job), ErrorCode::invalid);
  job = random.job;
  job.rows = job.rows.subspan(1);
  EXPECT_EQ(code(job), ErrorCode::invalid);
  job = random.job;
  job.n_rows = 5;
  EXPECT_EQ(code(job), ErrorCode::invalid);
  for (const auto& [pair, expected] :
       {std::pair{RoutedPair{.row = 4, .expert = 0}, ErrorCode::invalid},
        {RoutedPair{.row = -1, .expert = 0}, ErrorCode::invalid},
        {RoutedPair{.row = 0, .expert = -1}, ErrorCode::invalid},
        {RoutedPair{.row = 0, .expert = 1000}, ErrorCode::invalid},
        {RoutedPair{.row = 0, .expert = 2}, ErrorCode::not_found}}) {
    const std::vector<RoutedPair> pairs = {pair};
    job = random.job;
    job.pairs = pairs;
    EXPECT_EQ(code(job), expected) << pair.row << " " << pair.expert;
  }
  const std::vector<RoutedPair> falling = {{.row = 2, .expert = 0}, {.row = 1, .expert = 0}};
  job.pairs = falling;
  EXPECT_EQ(code(job), ErrorCode::invalid);
}

TEST(ExpertSet, RefusesALayoutOfAnotherModel) {
  const Model& model = models().golden;
  const auto team = std::make_shared<ThreadTeam>(ThreadTeamOptions{});
  ExpertSetLayout layout = set_layout(model, 1);
  layout.experts[0].home.pop_back();
  EXPECT_FALSE(ExpertSet::load(model, layout, {.team = team}, {}));
  layout = set_layout(model, 1);
  layout.first_layer = model.spec().n_layer();
  EXPECT_FALSE(ExpertSet::load(model, layout, {.team = team}, {}));
}

TEST(HostExecutor, OwnThreadAndSharedTeamGiveTheSameBits) {
  const Model& model = models().quantised;
  const int layer = moe_layer(model);
  const RandomJob random(model, 32, 9);
  std::vector<RoutedPair> pairs;  // at most n_used a row
  for (const RoutedPair& pair : random.pairs)
    if (pair.slot < moe_of(model).n_used) pairs.push_back(pair);
  ExpertJob job = random.job;
  job.pairs = pairs;
  auto set = load(model, set_layout(model, 3));
  const std::vector<double> expected = compute(*set, job);
  HostExecutorOptions options{.first_layer = layer, .end_layer = layer + 1, .max_rows = 32};
  for (const bool shared : {false, true}) {
    options.threads = 2;
    options.team = shared ? std::make_shared<ThreadTeam>(ThreadTeamOptions{.threads = 2}) : nullptr;
    auto host = make_host_executor(model, options);
    ASSERT_TRUE(host);
    std::vector<double> sums(job.rows.size());
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE((*host)->submit(job));
      EXPECT_EQ((*host)->submit(job).error().code, ErrorCode::exhausted);
      ASSERT_TRUE((*host)->collect(sums));
      EXPECT_EQ(sums, expected);
    }
    ASSERT_TRUE((*host)->submit(job));
    (*host)->drop();
    ASSERT_TRUE((*host)->submit(job));
    ASSERT_TRUE((*host)->collect(sums));
    EXPECT_EQ(sums, expected);
    ASSERT_TRUE((*host)->submit(job));  // and goes away with a job under way
  }
}

// Whatever is foreseen, and whenever: jobs have the sums that they have without.
TEST(HostExecutor, IsNotChangedByWhatIsForeseen) {
  for (const Model* model : {&models().golden, &models().quantised}) {
    const int layer = moe_layer(*model), experts = moe_of(*model).n_expert;
    std::mt19937 random(5);
    for (const int threads : {1, 3, 5}) {
      auto host = make_host_executor(
          *model,
          {.first_layer = layer, .end_layer = layer + 1, .max_rows = 8, .threads = threads});
      auto plain = make_host_executor(
          *model, {.first_layer = layer, .end_layer = layer + 1, .max_rows = 8, .threads = 2});
      ASSERT_TRUE(host && plain);
      for (int i = 0; i < 40; ++i) {
        for (int told = static_cast<int>(random() % 3); told > 0; --told) {
          std::vector<std::int32_t> coming;
          for (int e = 0; e < experts; ++e)
            if (random() % 3 != 0 || i == 7) coming.push_back(e);
          (*host)->foresee(layer, coming);
        }
        const RandomJob job(*model, 1 + i % 4, static_cast<unsigned>(i));
        std::vector<double> sums(job.rows.size()), expected(job.rows.size());
        ASSERT_TRUE((*host)->submit(job.job));
        EXPECT_FALSE((*host)->foresee(layer, {}));  // comes too late
        ASSERT_TRUE((*plain)->submit(job.job));
        ASSERT_TRUE((*host)->collect(sums));
        ASSERT_TRUE((*plain)->collect(expected));
        EXPECT_EQ(sums, expected);
      }
      (*host)->foresee(layer, std::vector<std::int32_t>{0});  // and goes away meanwhile
    }
  }
}

}  // namespace
}  // namespace tessera
