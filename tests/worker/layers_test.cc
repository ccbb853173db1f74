// A model whose layers lie partly or wholly in workers gives the logits of the unsplit one, bit for
// bit: for every family, both transports, any cut of the prompt, several sequences, and whatever
// the options.
#include <gtest/gtest.h>

#include "device/cpu/isa.h"
#include "tests/choices.h"
#include "tests/golden_data.h"
#include "tests/least_budget.h"
#include "tests/worker/layer_topology.h"

namespace tessera::testing {
namespace {

const char* const kTopologies[] = {"W", "LW", "WL", "WW", "LWL", "WLW", "LWLW", "WWWW"};
using enum worker::TransportChoice;

class WorkerLayers : public ::testing::TestWithParam<const char*> {
 protected:
  std::string model() const { return golden_path(GetParam(), "-bf16.gguf"); }
  GoldenData answers() const { return GoldenData::load(golden_path(GetParam(), ".bin")); }
};
INSTANTIATE_TEST_SUITE_P(Models, WorkerLayers, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& info) { return info.param; });

TEST_P(WorkerLayers, AnyTopologyAndTransport) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::vector<float> whole = plain.logits(ids, 512);
  for (const std::string topology : kTopologies) {
    if (!can_be_cut(model(), topology.size())) continue;
    for (const auto transport : {shared, stream}) {
      LayerWorkers workers{.transport = transport};
      ModelRunner runner(model(), on_topology(model(), topology, {}, workers));
      ASSERT_TRUE(runner.ready());
      for (const int chunk : {512, 37})
        EXPECT_TRUE(runner.logits(ids, chunk) == whole)
            << topology << ", chunks of " << chunk << (transport == stream ? ", stream" : "");
    }
  }
}

TEST_P(WorkerLayers, TokenByTokenAndWithoutLogits) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const auto vocab = static_cast<std::size_t>(plain.spec().n_vocab);
  const std::vector<float> whole = plain.logits(ids.first(40), 512);
  LayerWorkers workers;
  ModelRunner runner(model(), on_topology(model(), "LW", {}, workers));
  ASSERT_TRUE(runner.ready());
  EXPECT_TRUE(runner.logits(ids.first(40), 1) == whole);
  const std::vector<float> last = runner.last_logits(ids.first(40), 7);
  EXPECT_TRUE(
      std::equal(last.begin(), last.end(), whole.end() - static_cast<std::ptrdiff_t>(vocab)));
}

// At the worker with the head; here where the choices are more than the wire takes.
TEST_P(WorkerLayers, TokensAreChosenAsTheLogitsHaveIt) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::vector<float> logits = plain.logits(ids, 512);
  for (const std::string topology : {"W", "LW", "WL"}) {
    for (const auto transport : {shared, stream}) {
      SCOPED_TRACE(topology + (transport == stream ? ", stream" : ""));
      LayerWorkers workers{.transport = transport};
      ModelRunner runner(model(), on_topology(model(), topology, {}, workers));
      ASSERT_TRUE(runner.ready());
      expect_choices(runner, ids, logits, 300, 5);
      expect_choices(runner, ids.first(10), logits, 1, 5);
      const Counter& logits_instead = workers.metrics.counter(
          "tessera_worker_logits_total", "", {{"worker", "worker:0"}, {"reason", "choices"}});
      EXPECT_EQ(logits_instead.value(), 0u);
      expect_choices(runner, ids.first(10), logits, 5, 10'000);
      EXPECT_EQ(logits_instead.value(), topology.back() == 'W' ? 2u : 0u);
    }
  }
}

// Sequences that start, run and end at their own times, in slots and pages that were used before.
TEST_P(WorkerLayers, SeveralSequencesInTheBatch) {
  const GoldenData golden = answers();
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  const auto run = [&](ModelRunner& runner) {
    std::vector<float> all;
    ModelRunner::Sequence a = runner.start(400), b = runner.start(400);
    std::size_t at = 0;
    for (int round = 0; at < 300; ++round) {
      const std::size_t n = std::min<std::size_t>(
          static_cast<std::size_t>(round % 3 == 2 ? 1 : 40 + 60 * (round % 4)), 300 - at);
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(at);
      ModelRunner::Sequence c = runner.start(90);
      ModelRunner::Feed feeds[] = {
          {&a, {static_cast<TokenId>(round * 7 % 500)}},
          {&b, {begin, begin + static_cast<std::ptrdiff_t>(n)}},
          {&c, {ids.begin(), ids.begin() + 70 + round % 5}},
      };
      const std::vector<float> logits = runner.step(feeds);
      all.insert(all.end(), logits.begin(), logits.end());
      at += n;
    }
    return all;
  };
  ModelRunner plain(model(), {.threads = 1});
  ASSERT_TRUE(plain.ready());
  const std::vector<float> expected = run(plain);
  LayerWorkers workers;
  ModelRunner runner(model(), on_topology(model(), "LW", {}, workers));
  ASSERT_TRUE(runner.ready());
  EXPECT_TRUE(run(runner) == expected);
}

// What leaves a worker's memory is computed from its file, with the bits of one process.
TEST(WorkerLayersExperts, StayInTheFileOfTheWorkerThatHasTheLayers) {
  for (const char* name : {"qwen35moe", "laguna", "gemma4moe"}) {
    const std::string model = golden_path(name, "-bf16.gguf");
    const GoldenData golden = GoldenData::load(golden_path(name, ".bin"));
    const std::span<const std::int32_t> ids = golden.ints("p33_ids");
    ModelRunner plain(model, {.threads = 1});
    ASSERT_TRUE(plain.ready());
    const std::vector<float> whole = plain.logits(ids, 512);
    for (const double resident : {60.0, 0.0}) {
      for (const char* topology : {"W", "LW"}) {
        SCOPED_TRACE(fmt::format("{}, {} %, {}", name, resident, topology));
        LayerWorkers workers;
        ModelRunner runner(model,
                           on_topology(model, topology, {.expert_resident = resident}, workers));
        ASSERT_TRUE(runner.ready());
        EXPECT_GT(runner.plan().shards.back().experts_host, 0);
        EXPECT_TRUE(runner.logits(ids, 512) == whole);
        EXPECT_TRUE(runner.logits(ids, 1) == whole);
      }
    }
  }
}

// So is what its budget does not hold besides.
TEST(WorkerBudget, LeavesWeightsInTheFileOfTheWorker) {
  for (const char* name : kGoldenModels) {
    const std::string model = golden_path(name, "-bf16.gguf");
    const GoldenData golden = GoldenData::load(golden_path(name, ".bin"));
    const std::span<const std::int32_t> ids = golden.ints("p300_ids").first(100);
    const RunnerOptions plain_options{.threads = 1, .prefill_chunk = 64, .logit_rows = 64};
    const Result<Model> opened = Model::open(model);
    ASSERT_TRUE(opened);
    ModelRunner plain(model, plain_options);
    ASSERT_TRUE(plain.ready());
    const std::vector<float> whole = plain.logits(ids, 64);
    for (const char* topology : {"W", "LW"}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, topology));
      LayerWorkers workers;
      RunnerOptions options = on_topology(model, topology, plain_options, workers);
      // Most layers to the worker, so that the budget of both is too little for it.
      if (options.placement.devices.size() > 1) options.placement.layer_weights = {1, 3};
      options.budget = least_budget(*opened, options);
      ModelRunner runner(model, options);
      ASSERT_TRUE(runner.ready());
      const ShardPlan& shard = runner.plan().shards.back();
      EXPECT_TRUE(shard.file_bytes > 0 || shard.experts_host > 0);
      EXPECT_TRUE(runner.logits(ids, 64) == whole);
      EXPECT_TRUE(runner.logits(ids, 1) == whole);
    }
  }
}

TEST(WorkerState, IsCopiedAsOne) {
  const std::string model = golden_path("qwen35moe", "-bf16.gguf");
  const GoldenData golden = GoldenData::load(golden_path("qwen35moe", ".bin"));
  const std::span<const std::int32_t> ids = golden.ints("p300_ids");
  for (const char* topology : {"W", "WL", "LWL"}) {
    LayerWorkers workers;
    ModelRunner runner(model, on_topology(model, topology, {}, workers));
    ASSERT_TRUE(runner.ready());
    SCOPED_TRACE(topology);
    expect_state_copied(runner, ids);
  }
}

// --- Options mean the same on every topology ---

std::vector<std::pair<std::string, RunnerOptions>> option_cases() {
  std::vector<std::pair<std::string, RunnerOptions>> cases;
  for (const KvType type : {KvType::f16, KvType::f32, KvType::q8_0})
    cases.emplace_back(std::string("kv type ") + kv_type_name(type),
                       RunnerOptions{.kv_type = type});
  cases.emplace_back("parallel 1", RunnerOptions{.parallel = 1});
  cases.emplace_back("parallel 6", RunnerOptions{.parallel = 6});
  cases.emplace_back("prefill chunk 100", RunnerOptions{.prefill_chunk = 100});
  cases.emplace_back("context 310", RunnerOptions{.context = 310});
  cases.emplace_back("layer split 3,1", RunnerOptions{.placement = {.layer_weights = {3, 1}}});
  for (const char* isa : {"portable", "avx2", "avx512"})
    if (cpu::parse_isa(isa))
      cases.emplace_back(std::string("isa ") + isa, RunnerOptions{.device = {.cpu_isa = isa}});
  cases.emplace_back("delta form chunked", RunnerOptions{.device = {.chunked_delta = true}});
  return cases;
}

TEST(WorkerOptions, AreHonouredOnEveryTopology) {
  for (const char* name : {"qwen35moe", "gemma4"}) {
    const std::string model = golden_path(name, "-bf16.gguf");
    const GoldenData golden = GoldenData::load(golden_path(name, ".bin"));
    const std::span<const std::int32_t> ids = golden.ints("p300_ids");
    for (auto& [what, options] : option_cases()) {
      RunnerOptions alone = options;
      alone.threads = 1;
      alone.placement = {};
      ModelRunner plain(model, alone);
      ASSERT_TRUE(plain.ready());
      const std::vector<float> expected = plain.logits(ids, options.prefill_chunk);
      for (const char* topology : {"LW", "WL", "WW"}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", name, what, topology));
        LayerWorkers workers;
        ModelRunner runner(model, on_topology(model, topology, options, workers));
        ASSERT_TRUE(runner.ready());
        EXPECT_TRUE(runner.logits(ids, options.prefill_chunk) == expected);
        EXPECT_EQ(runner.plan().context, plain.plan().context);
        EXPECT_EQ(runner.plan().kv_type, plain.plan().kv_type);
        EXPECT_EQ(runner.pool().free_slots(), options.parallel);
        EXPECT_EQ(runner.pool().max_positions(), plain.pool().max_positions());
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
