// Whole models on the GPU: the golden answers, the same tokens as on the CPU, rows that do not
// depend on their neighbours, layers split between CPU and GPU.
#include <gtest/gtest.h>

#include <array>

#include "device/gpu/gpu_layout.h"
#include "sampling/choose.h"
#include "tests/golden_answers.h"
#include "tests/gpu/on_gpu.h"

namespace tessera::testing {
namespace {

class GpuGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { GPU_OR_SKIP(); }
  std::string model() const { return golden_path(GetParam(), "-bf16.gguf"); }
  GoldenData answers() const { return GoldenData::load(golden_path(GetParam(), ".bin")); }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuGolden, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

// Rows of up to 8 a step see f32 activations; more go through tiles in f16.
TEST_P(GpuGolden, LogProbabilitiesMatch) {
  const GoldenData golden = answers();
  ModelRunner runner(model(), on_gpu());
  ASSERT_TRUE(runner.ready());
  const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
  for (const std::string prompt : {"p1", "p33", "p300"})
    for (const auto& [chunk, most] : {std::pair{1, 2e-3}, {8, 2e-3}, {64, 5e-2}, {512, 5e-2}}) {
      const std::vector<float> got = runner.logits(golden.ints(prompt + "_ids"), chunk);
      const double worst = worst_difference(got, golden.floats(prompt + "_logits"), vocab);
      std::printf("%s %s, %d rows a step: %.1e\n", GetParam(), prompt.c_str(), chunk, worst);
      EXPECT_LT(worst, most) << prompt << ", " << chunk << " rows a step";
    }
}

TEST_P(GpuGolden, GreedyContinuationMatches) {
  for (const bool graphs : {true, false})
    for (const bool chained : {true, false}) {
      RunnerOptions options = on_gpu();
      options.device.gpu_graphs = graphs;
      options.device.gpu_chained = chained;
      ModelRunner runner(model(), options);
      expect_greedy(answers(), runner, 2e-2f);
    }
}

TEST_P(GpuGolden, LayersOnCpuAndGpu) {
  for (const bool gpu_first : {true, false}) {
    RunnerOptions options = on_gpu();
    const DeviceName cpu{};
    options.placement.devices.insert(
        gpu_first ? options.placement.devices.end() : options.placement.devices.begin(), cpu);
    options.placement.layer_weights = {1.0, 1.0};
    ModelRunner runner(model(), options);
    expect_greedy(answers(), runner, 2e-2f);
  }
}

// Experts that the GPU lacks are computed on the host, from none to nearly all, and may come later.
TEST_P(GpuGolden, ExpertsOnTheHost) {
  if (std::string(GetParam()).find("moe") == std::string::npos) GTEST_SKIP() << "no experts";
  const Result<Model> opened = Model::open(model());
  ASSERT_TRUE(opened);
  if (!gpu_experts_may_leave(opened->spec())) GTEST_SKIP() << "its experts stay";
  for (const double percent : {0.0, 50.0})
    for (const int spare : {0, 1}) {
      RunnerOptions options = on_gpu();
      options.expert_resident = percent;
      options.expert_spare = spare;
      options.device.experts.options.stream = ExpertStream::off;
      ModelRunner runner(model(), options);
      expect_greedy(answers(), runner, 2e-2f);
      const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
      const GoldenData golden = answers();
      for (const int chunk : {8, 512}) {
        const std::vector<float> got = runner.logits(golden.ints("p300_ids"), chunk);
        EXPECT_LT(worst_difference(got, golden.floats("p300_logits"), vocab), 5e-2)
            << percent << " % resident, " << chunk << " rows a step";
      }
    }
}

// A decoding row has the same bits alone and among others.
TEST_P(GpuGolden, DecodedRowsDoNotDependOnTheirNeighbours) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  RunnerOptions options = on_gpu();
  options.parallel = 8;
  ModelRunner runner(model(), options);
  ASSERT_TRUE(runner.ready());
  const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
  const std::vector<float> alone = runner.logits(ids.first(60), 1);
  EXPECT_TRUE(runner.logits(ids.first(60), 1) == alone) << "not the same twice";
  for (const std::size_t others : {1u, 4u, 7u}) {
    std::vector<ModelRunner::Sequence> sequences;
    for (std::size_t i = 0; i <= others; ++i) sequences.push_back(runner.start(100));
    for (std::size_t at = 0; at < 60; ++at) {
      std::vector<ModelRunner::Feed> feeds;
      for (std::size_t i = 0; i <= others; ++i)
        feeds.push_back({&sequences[i], {i == others / 2 ? ids[at] : ids[(at * 7 + i) % 300]}});
      const std::vector<float> logits = runner.step(feeds);
      const std::span<const float> row = std::span(logits).subspan(others / 2 * vocab, vocab);
      EXPECT_TRUE(std::equal(row.begin(), row.end(),
                             alone.begin() + static_cast<std::ptrdiff_t>(at * vocab)))
          << others << " others, position " << at;
    }
  }
}

// A row's choice on the GPU is the host's from the same logits, where both must agree: the largest,
// with and without changes, draws that can end at one token only. Others are among the likeliest.
// Where log probabilities are wanted the host chooses.
TEST_P(GpuGolden, ChoicesAreTheHosts) {
  RunnerOptions options = on_gpu();
  options.parallel = 8;
  ModelRunner runner(model(), options);
  ASSERT_TRUE(runner.ready());
  TokenChooser chooser(runner.spec());
  const std::vector<LogitChange> changes = {{.id = 11, .bias = 9.0f},
                                            {.id = 7, .penalty = 1.5f},
                                            {.id = 11, .less = 3.0f},
                                            {.id = 2, .bias = 2.0f}};
  const std::vector<TokenChoice> choices = {
      {},
      {.n_changes = 4},
      {.temperature = 0.7f, .top_k = 1, .uniform = 0.9},
      {.temperature = 1.0f, .top_p = 1e-6f, .uniform = 0.5},
      {.temperature = 1.0f, .min_p = 1.0f, .uniform = 0.99},
      {.temperature = 0.9f, .top_k = 5, .top_p = 0.95f, .uniform = 0.6},
  };
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  std::vector<ModelRunner::Sequence> asked;
  for (std::size_t i = 0; i < choices.size(); ++i) asked.push_back(runner.start(100));
  ModelRunner::Sequence alone = runner.start(100);
  const std::size_t positions = emulated() ? 4 : 12;
  for (std::size_t at = 0; at < positions; ++at) {
    ModelRunner::Feed feed{&alone, {ids[at]}};
    const std::vector<float> logits = runner.step({&feed, 1});
    std::vector<ModelRunner::Feed> feeds;
    for (ModelRunner::Sequence& sequence : asked) feeds.push_back({&sequence, {ids[at]}});
    std::vector<TokenChoice> wanted = choices;
    if (at % 2 == 1) wanted[0].n_top = 2;
    const std::vector<ChosenToken> chosen = runner.choose(feeds, {wanted, changes});
    ASSERT_EQ(chosen.size(), choices.size());
    std::vector<float> rows;
    for (std::size_t i = 0; i < choices.size(); ++i)
      rows.insert(rows.end(), logits.begin(), logits.end());
    std::vector<ChosenToken> hosts(choices.size());
    chooser.choose(rows, {wanted, changes}, hosts);
    for (std::size_t i = 0; i + 1 < choices.size(); ++i)
      EXPECT_EQ(chosen[i].id, hosts[i].id) << "choice " << i << ", position " << at;
    const float drawn = logits[static_cast<std::size_t>(chosen.back().id)];
    EXPECT_LT(std::count_if(logits.begin(), logits.end(), [&](float l) { return l > drawn; }), 5)
        << "position " << at;
  }
}

// A batch's choices are the head's: to a shard without it they change nothing.
TEST_P(GpuGolden, AShardWithoutTheHeadIgnoresChoices) {
  const Result<Model> opened = Model::open(model());
  ASSERT_TRUE(opened);
  const ModelSpec& spec = opened->spec();
  ShardLayout shard = small_shard(spec);
  shard.head = false;
  auto device = open_gpu(device_options());
  ASSERT_TRUE(device) << device.error().message;
  const Status loaded = (*device)->load(*opened, shard, {});
  ASSERT_TRUE(loaded) << loaded.error().message;

  const GoldenData golden = answers();
  const std::span<const TokenId> ids = golden.ints("p33_ids");
  const std::vector<std::int32_t> page = {5};
  const std::vector<std::span<const std::int32_t>> pages(shard.kv_pages.size(), page);
  const auto hidden = [&](int first, int n, const TokenChoices& choices) {
    const auto rows = static_cast<std::size_t>(n);
    const SequenceRows sequence{.n_rows = n, .first_position = first, .pages = pages};
    const std::vector<std::int32_t> logit_rows = {0, 1};
    (*device)->begin({.tokens = ids.subspan(static_cast<std::size_t>(first), rows),
                      .sequences = {&sequence, 1},
                      .logit_rows = logit_rows,
                      .choices = choices});
    (*device)->embed();
    for (int l = 0; l < shard.end_layer; ++l) {
      (*device)->mixer(l);
      (*device)->route(l);
      (*device)->all_experts(l);
      (*device)->dense(l);
      (*device)->finish_ffn(l);
    }
    std::vector<float> out(rows * static_cast<std::size_t>(spec.n_embd));
    (*device)->read_hidden(out);
    const Status fault = (*device)->fault();
    EXPECT_TRUE(fault) << fault.error().message;
    return out;
  };
  (*device)->reset_slot(0);
  hidden(0, 8, {});
  (*device)->copy_slot({.from = 0, .to = 1});
  const auto next = [&](const TokenChoices& choices) {
    (*device)->copy_slot({.from = 1, .to = 0});
    return hidden(8, 2, choices);
  };
  const std::vector<float> expected = next({});
  const std::vector<TokenChoice> largest(2), drawn(2, {.temperature = 0.7f}),
      changed(2, {.n_changes = 1});
  const std::vector<LogitChange> changes = {{.id = 7, .bias = 1.0f}, {.id = 9, .less = 1.0f}};
  EXPECT_TRUE(next({.rows = largest}) == expected);
  EXPECT_TRUE(next({.rows = drawn}) == expected);
  EXPECT_TRUE(next({.rows = changed, .changes = changes}) == expected);
}

}  // namespace
}  // namespace tessera::testing
