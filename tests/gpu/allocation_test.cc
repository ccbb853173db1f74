// What memory a GPU takes, and what is left of a load or a step that fails.
#include <gtest/gtest.h>

#include <functional>
#include <span>

#include "device/gpu/gpu_experts.h"
#include "tests/golden_data.h"
#include "tests/gpu/on_gpu.h"
#include "tests/gpu/typed_model.h"

namespace tessera::testing {
namespace {

struct Loaded {
  Status status;
  bool whole = true;  // false: loaded, but without something that may be missing
};

// `load(n)` loads with the n-th allocation failing and destroys what it made. Allocations fail one
// after the other until none is left; each time all memory must be free again.
void expect_no_leak(const std::function<Loaded(int fail_allocation)>& load, int least_failures) {
  load(-1);  // the driver takes something for itself
  const std::int64_t before = free_bytes();
  int failures = 0;
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 400);
    const Loaded loaded = load(n);
    EXPECT_GE(free_bytes(), before) << "after failure " << n;
    if (loaded.status && loaded.whole) break;
    ++failures;
    if (loaded.status) continue;
    EXPECT_EQ(loaded.status.error().code, ErrorCode::exhausted) << loaded.status.error().message;
    EXPECT_NE(loaded.status.error().message.find("cannot allocate"), std::string::npos);
  }
  EXPECT_GT(failures, least_failures);
}

// Every other expert of each layer is the host's, which are in pinned memory too where `streamed`.
ShardLayout with_experts_away(const ModelSpec& spec, bool streamed) {
  ShardLayout shard = small_shard(spec);
  for (const LayerSpec& layer : spec.layers) {
    LayerExperts& experts = shard.experts.emplace_back();
    if (!layer.moe) continue;
    experts.streamed = streamed;
    experts.spare = 1;
    for (int e = 0; e < layer.moe->n_expert; ++e)
      experts.home.push_back(e % 2 == 0 ? ExpertHome::resident() : ExpertHome::host());
  }
  return shard;
}

Loaded load_shard(const Model& model, const ShardLayout& shard, int fail_allocation) {
  GpuDeviceOptions options = device_options();
  options.fail_allocation = fail_allocation;
  auto device = open_gpu(options);
  EXPECT_TRUE(device) << device.error().message;
  if (!device) return {};
  Loaded loaded{.status = (*device)->load(model, shard, {})};
  // A layer whose experts found no pinned memory leaves them to the host.
  for (int l = 0; loaded.status && l < static_cast<int>(shard.experts.size()); ++l) {
    const std::span<const std::uint8_t> there = (*device)->streamable(l);
    if (shard.experts[static_cast<std::size_t>(l)].streamed && there.empty()) loaded.whole = false;
  }
  return loaded;
}

TEST(GpuFaults, FailedAllocationsLeakNothing) {
  GPU_OR_SKIP();
  const Result<Model> model = Model::open(golden_path("qwen35moe", "-bf16.gguf"));
  ASSERT_TRUE(model);
  ShardLayout shard = small_shard(model->spec());
  shard.table_device_rows = 256;  // and the others in pinned memory
  expect_no_leak([&](int n) { return load_shard(*model, shard, n); }, 8);
}

// Rows, sums and questions for the host, and the way of experts that come.
TEST(GpuFaults, FailedAllocationsLeakNothingWithExpertsAway) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"expert_count=24", "block_count=2"});
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  for (const bool streamed : {false, true}) {
    const ShardLayout shard = with_experts_away(model->spec(), streamed);
    expect_no_leak([&](int n) { return load_shard(*model, shard, n); }, streamed ? 16 : 12);
  }
}

TEST(GpuFaults, FailedAllocationsLeakNothingOfExpertsAlone) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"expert_count=24", "block_count=2"});
  const Result<Model> model = Model::open(file.path());
  ASSERT_TRUE(model);
  ShardLayout shard = with_experts_away(model->spec(), false);
  for (LayerExperts& layer : shard.experts) layer.spare = 0;
  const auto load = [&](int n) -> Loaded {
    GpuDeviceOptions options = device_options();
    options.fail_allocation = n;
    auto experts =
        make_gpu_experts(device_kind_name(test_gpu().name->kind), options, plugin_folder());
    EXPECT_TRUE(experts) << experts.error().message;
    if (!experts) return {};
    return {.status = (*experts)->load(*model, shard)};
  };
  expect_no_leak(load, 4);
}

TEST(GpuFaults, ALateStepIsAnError) {
  GPU_OR_SKIP();
  RunnerOptions options = on_gpu();
  options.device.gpu_wait_s = 1e-9;
  ModelRunner runner(golden_path("qwen3", "-bf16.gguf"), options);
  ASSERT_TRUE(runner.ready());
  ModelRunner::Sequence sequence = runner.start(400);
  const std::vector<TokenId> ids(300, 7);
  Status status;
  for (int i = 0; i < 20 && status; ++i) {
    sequence.state.extend(i == 0 ? 300 : 1);
    const SequenceRows rows{.n_rows = i == 0 ? 300 : 1,
                            .first_position = i == 0 ? 0 : 299 + i,
                            .slot = sequence.state.slot(),
                            .pages = sequence.state.page_tables()};
    const std::vector<std::int32_t> logit_rows = {0};
    status = runner.pipeline().forward(
        {.tokens = std::span(ids).first(static_cast<std::size_t>(rows.n_rows)),
         .sequences = {&rows, 1},
         .logit_rows = logit_rows});
  }
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("did not finish a step"), std::string::npos);
}

// Of a plan, which is given back.
void expect_taken_as_planned(const std::string& path, const RunnerOptions& options, Plan& plan) {
  const std::int64_t before = free_bytes();
  ModelRunner runner(path, options);
  ASSERT_TRUE(runner.ready());
  plan = runner.plan();
  // What comes when it is first used, too: kernels, and a step's graph.
  const std::vector<TokenId> ids = {1, 2, 3};
  static_cast<void>(runner.logits(ids, 1));
  const std::int64_t taken = before - free_bytes();
  const std::int64_t planned = plan.shards[0].total_bytes();
  // The driver hands out memory in pieces of 2 MiB, and keeps some for itself.
  EXPECT_GE(taken, planned - (std::int64_t{4} << 20));
  EXPECT_LE(taken, planned + (std::int64_t{256} << 20)) << planned;
}

TEST(GpuPlan, IsWhatTheDeviceTakes) {
  GPU_OR_SKIP();
  const TypedModel file("qwen35moe", BlockType::Q4_K, {"block_count=8", "vocab_size=32768"});
  RunnerOptions options = on_gpu();
  Plan whole, split;
  expect_taken_as_planned(file.path(), options, whole);
  // With room for all but a part of the embedding table.
  options.budget = whole.shards[0].total_bytes() - (std::int64_t{1} << 20);
  expect_taken_as_planned(file.path(), options, split);
  EXPECT_GT(split.shards[0].layout.table_device_rows.value_or(0), 0);
  EXPECT_LE(split.shards[0].total_bytes(), *options.budget);
}

}  // namespace
}  // namespace tessera::testing
