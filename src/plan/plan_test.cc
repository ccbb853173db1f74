#include "plan/plan.h"

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>

#include "plan/planner_rig.h"

namespace tessera {
namespace {

Inventory one_cpu(std::int64_t free_bytes) {
  return {.devices = {{.name = "cpu",
                       .threads = 2,
                       .memory_total = std::int64_t{64} << 30,
                       .memory_free = free_bytes}}};
}

TEST(Plan, CountsKvFromTheGeometryOfEachGroup) {
  // gemma4: full layers 2 and 5 (1 KV head of 64), windows of 64 on the others (2 KV heads of 32).
  const Model model = golden("gemma4");
  Result<Plan> plan =
      make_plan(model, one_cpu(kPlenty),
                {.context = 1024, .parallel = 3, .prefill_chunk = 128, .kv_type = KvType::f16});
  ASSERT_TRUE(plan) << plan.error().message;
  const ShardPlan& shard = plan->shards.front();
  std::int64_t expected = 0;
  ASSERT_EQ(plan->kv_windows.size(), 2u);
  for (std::size_t group = 0; group < 2; ++group) {
    const bool full = plan->kv_windows[group] == 0;
    const std::int64_t pages = 3 * (full ? 1024 / 64 : window_pages(64, 128));
    EXPECT_EQ(shard.layout.kv_pages[group], pages);
    const std::int64_t layers = full ? 2 : 4;
    const std::int64_t elements = full ? 2 * 1 * 64 : 2 * 2 * 32;  // K and V of a token
    expected += pages * 64 * layers * elements * 2;
  }
  EXPECT_EQ(shard.kv_bytes, expected);
  EXPECT_EQ(shard.recurrent_bytes, 0);
}

TEST(Plan, CountsRecurrentStateByTheSlot) {
  const Model model = golden("qwen35moe");
  Result<Plan> plan = make_plan(model, one_cpu(kPlenty), {.context = 256, .parallel = 5});
  ASSERT_TRUE(plan) << plan.error().message;
  // Three layers; history of 3 x 256 channels, S of 4 heads of 32 x 32; f32.
  EXPECT_EQ(plan->shards.front().recurrent_bytes, 5 * 3 * (3 * 256 + 4 * 32 * 32) * 4);
}

TEST(Plan, ComputesUnquantisedModelsInF32Throughout) {
  Result<Plan> plan = make_plan(golden("qwen3"), one_cpu(kPlenty), {.context = 256});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kv_type, KvType::f32);
}

TEST(Plan, CountsWeightsInF32WhenTheyAreAskedFor) {
  const Model model = golden("qwen35moe");
  Result<Plan> stored = make_plan(model, one_cpu(kPlenty), {.context = 256});
  Result<Plan> widened = make_plan(model, one_cpu(kPlenty), {.context = 256, .f32_weights = true});
  ASSERT_TRUE(stored && widened);
  EXPECT_TRUE(widened->shards.front().layout.f32_weights);
  // BF16 matrices take twice the bytes; vectors and what was f32 before stay.
  EXPECT_GT(widened->shards.front().weight_bytes, stored->shards.front().weight_bytes * 19 / 10);
  EXPECT_LE(widened->shards.front().weight_bytes, stored->shards.front().weight_bytes * 2);
  EXPECT_GT(widened->decode_bytes_per_token, stored->decode_bytes_per_token * 1.5);
}

TEST(Plan, RefusesF32WeightsOnWorkers) {
  const Model model = golden("qwen35moe");
  Inventory inventory = one_cpu(kPlenty);
  inventory.expert_workers.push_back({.name = "worker:0", .budget = 1 << 30});
  EXPECT_TRUE(make_plan(model, inventory, {.context = 256}));
  Result<Plan> plan = make_plan(model, inventory, {.context = 256, .f32_weights = true});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::invalid);
  EXPECT_NE(plan.error().message.find("--compute f32"), std::string::npos);
}

TEST(Plan, ShortensAContextThatNobodyAskedFor) {
  const Model model = golden("qwen3");
  Result<Plan> roomy = make_plan(model, one_cpu(kPlenty), {.parallel = 8});
  ASSERT_TRUE(roomy) << roomy.error().message;
  EXPECT_EQ(roomy->context, 4096);
  const std::int64_t budget = roomy->total_bytes() - roomy->shards.front().kv_bytes / 4;
  Result<Plan> tight = make_plan(model, one_cpu(budget), {.parallel = 8});
  ASSERT_TRUE(tight) << tight.error().message;
  EXPECT_EQ(tight->context, 2048);
  EXPECT_LE(tight->total_bytes(), budget);
}

TEST(Plan, SaysWhatLacksAndWhatWouldFit) {
  const Model model = golden("qwen3");
  Inventory inventory = one_cpu(kPlenty);
  inventory.devices.front().budget = 38 << 20;
  Result<Plan> plan = make_plan(model, inventory, {.context = 4096, .parallel = 64});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::exhausted);
  EXPECT_NE(plan.error().message.find("cpu lacks"), std::string::npos) << plan.error().message;
  const std::string& message = plan.error().message;
  EXPECT_NE(message.find("the KV is the largest part"), std::string::npos) << message;
  // Each of these by itself; the most that does.
  EXPECT_NE(message.find("--ctx 128 or --parallel 2 or a budget of"), std::string::npos) << message;
  EXPECT_TRUE(make_plan(model, inventory, {.context = 128, .parallel = 64}));
  EXPECT_FALSE(make_plan(model, inventory, {.context = 192, .parallel = 64}));
  EXPECT_TRUE(make_plan(model, inventory, {.context = 4096, .parallel = 2}));
  EXPECT_FALSE(make_plan(model, inventory, {.context = 4096, .parallel = 3}));
  std::int64_t mib = 0;
  ASSERT_EQ(
      std::sscanf(message.c_str() + message.rfind("a budget of"), "a budget of %" SCNd64, &mib), 1);
  inventory.devices.front().budget = mib << 20;
  EXPECT_TRUE(make_plan(model, inventory, {.context = 4096, .parallel = 64}));
  inventory.devices.front().budget = (mib - 1) << 20;
  EXPECT_FALSE(make_plan(model, inventory, {.context = 4096, .parallel = 64}));
}

// --ctx is no advice where the program alone is too large.
TEST(Plan, AdvisesNothingThatDoesNotHelp) {
  Inventory inventory = one_cpu(kPlenty);
  inventory.devices.front().budget = 5 << 20;
  const Result<Plan> plan = make_plan(golden("qwen3"), inventory, {.context = 256});
  ASSERT_FALSE(plan);
  const std::string& message = plan.error().message;
  EXPECT_NE(message.find("the program is the largest part"), std::string::npos) << message;
  EXPECT_EQ(message.find("--ctx"), std::string::npos) << message;
  EXPECT_NE(message.find("MiB for cpu would fit"), std::string::npos) << message;
}

// What of the weights stays in the file: as little as does, the embedding first.
TEST(Plan, LeavesWeightsInTheFile) {
  for (const char* name : {"qwen3", "gemma4", "qwen35moe"}) {
    const Model model = golden(name);
    const PlanOptions options{.context = 256, .prefill_chunk = 16};
    Inventory inventory = one_cpu(kPlenty);
    const Result<Plan> roomy = make_plan(model, inventory, options);
    ASSERT_TRUE(roomy);
    const ShardPlan& whole = roomy->shards.front();
    EXPECT_EQ(whole.file_bytes, 0);
    const std::int64_t all = whole.total_bytes() + whole.host_bytes;
    int before = 0;
    bool fits = true;
    for (std::int64_t less = 1; fits; less += whole.weight_bytes / 10) {
      inventory.devices.front().budget = all - less;
      const Result<Plan> plan = make_plan(model, inventory, options);
      fits = plan.ok();
      if (!fits) {
        EXPECT_EQ(plan.error().code, ErrorCode::exhausted);
        continue;
      }
      const ShardPlan& shard = plan->shards.front();
      EXPECT_GE(shard.free_bytes(), 0);
      EXPECT_GE(shard.layout.file_parts, before) << name;
      before = shard.layout.file_parts;
      EXPECT_EQ(shard.file_bytes > 0, before > 0);
      const std::string told = "of weights in the file (" + shard.file_parts;
      EXPECT_EQ(plan_table(*plan).find(told) != std::string::npos, before > 0);
      EXPECT_EQ(plan_json(*plan)["shards"][0]["weights_file_bytes"], shard.file_bytes);
    }
    EXPECT_GT(before, model.spec().n_layer() / 2) << name;
  }
}

TEST(Plan, RefusesWhatCannotBe) {
  const Model model = golden("qwen3");
  EXPECT_FALSE(make_plan(model, one_cpu(kPlenty), {.context = 4097}));
  EXPECT_FALSE(make_plan(model, one_cpu(kPlenty), {.parallel = 0}));
  EXPECT_FALSE(make_plan(model, one_cpu(kPlenty), {.prefill_chunk = 0}));
  EXPECT_FALSE(make_plan(model, {}, {}));
}

TEST(Plan, CountsOnlyTheExpertsATokenReads) {
  const Model model = golden("qwen35moe");
  double all = 0.0;
  for (const TensorSlice& slice : model.tensors())
    if (slice.role != TensorRole::token_embd)
      all += static_cast<double>(slice.elements() / slice.cols * row_bytes(slice.type, slice.cols));
  const double experts =
      4.0 * 8 * 3 * 128 * 64 * 2;  // layers, experts, matrices of 128 x 64 in BF16
  const double state = 2.0 * 3 * (3 * 256 + 4 * 32 * 32) * 4;
  EXPECT_DOUBLE_EQ(decode_bytes(model, {.kv_type = KvType::f32}), all - experts * 5 / 8 + state);
  // One attention layer of 2 KV heads of 32.
  EXPECT_DOUBLE_EQ(decode_bytes(model, {.kv_type = KvType::f32, .depth = 1000}) -
                       decode_bytes(model, {.kv_type = KvType::f32}),
                   1000.0 * 2 * 2 * 32 * 4);
}

TEST(Plan, PrintsEveryByte) {
  Result<Plan> plan =
      make_plan(golden("laguna"), one_cpu(kPlenty), {.context = 512, .parallel = 2});
  ASSERT_TRUE(plan) << plan.error().message;
  const nlohmann::ordered_json json = plan_json(*plan);
  const auto& shard = json["shards"][0];
  EXPECT_EQ(shard["total_bytes"].get<std::int64_t>(),
            shard["weight_bytes"].get<std::int64_t>() + shard["kv_bytes"].get<std::int64_t>() +
                shard["recurrent_bytes"].get<std::int64_t>() +
                shard["scratch_bytes"].get<std::int64_t>() +
                shard["handoff_bytes"].get<std::int64_t>());
  EXPECT_NE(plan_table(*plan).find("cpu"), std::string::npos);
}

}  // namespace
}  // namespace tessera
