// Plans over several devices: every byte counted in the shard that holds it, budgets kept, and
// refusals that say what would fit.
#include "plan/shard_planner.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "device/cpu/cpu_device.h"

namespace tessera {
namespace {

constexpr std::int64_t kPlenty = std::int64_t{32} << 30;

Model golden(const std::string& name) {
  Result<Model> model =
      Model::open(std::string(TESSERA_SOURCE_DIR "/tests/data/golden/") + name + "-bf16.gguf");
  EXPECT_TRUE(model) << model.error().message;
  return *std::move(model);
}

Inventory machine(int devices, std::int64_t free_bytes = kPlenty) {
  Inventory inventory;
  for (int i = 0; i < devices; ++i)
    inventory.devices.push_back({.name = fmt::format("cpu:{}", i),
                                 .threads = 1,
                                 .memory_total = kPlenty,
                                 .memory_free = free_bytes});
  return inventory;
}

std::vector<int> ends(const Plan& plan) {
  std::vector<int> result;
  for (const ShardPlan& shard : plan.shards) result.push_back(shard.layout.end_layer);
  return result;
}

TEST(ShardPlanner, ShardsAddUpToTheWhole) {
  for (const char* name : {"qwen35moe", "qwen35", "laguna", "gemma4", "gemma4moe", "qwen3"}) {
    const Model model = golden(name);
    const PlanOptions options{.context = 512, .parallel = 3, .prefill_chunk = 64};
    const Result<Plan> one = make_plan(model, machine(1), options);
    const Result<Plan> two = make_plan(model, machine(2), options);
    ASSERT_TRUE(one && two) << name;
    ASSERT_EQ(two->shards.size(), 2u);
    const ShardPlan& whole = one->shards.front();
    const ShardPlan& a = two->shards[0];
    const ShardPlan& b = two->shards[1];
    EXPECT_EQ(a.layout.first_layer, 0);
    EXPECT_EQ(a.layout.end_layer, b.layout.first_layer);
    EXPECT_EQ(b.layout.end_layer, model.spec().n_layer());
    EXPECT_TRUE(a.layout.embedding && !a.layout.head && !b.layout.embedding && b.layout.head);
    EXPECT_EQ(a.kv_bytes + b.kv_bytes, whole.kv_bytes) << name;
    EXPECT_EQ(a.recurrent_bytes + b.recurrent_bytes, whole.recurrent_bytes) << name;
    EXPECT_EQ(a.experts + b.experts, whole.experts) << name;
    // A tied head needs the embedding table in the last shard as well.
    const std::int64_t twice = a.weight_bytes + b.weight_bytes - whole.weight_bytes;
    EXPECT_EQ(twice > 0, model.spec().tied_head) << name;
    EXPECT_EQ(a.free_bytes(), b.free_bytes()) << name;  // of the same memory
    EXPECT_EQ(a.free_bytes(), kPlenty - two->total_bytes()) << name;
    EXPECT_EQ(whole.handoff_bytes, 0);
  }
}

TEST(ShardPlanner, WeightsDecideAndCutsKeepSharedKvTogether) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  const Result<Plan> plan =
      make_plan(model, machine(2), {.context = 256, .layer_weights = {1, 99}});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(ends(*plan), (std::vector<int>{1, n}));

  const Model shared = golden("gemma4");
  for (int l = 0; l < shared.spec().n_layer(); ++l) {
    const AttentionSpec* a = shared.spec().layers[static_cast<std::size_t>(l)].attention();
    if (a->kv_source < 0) continue;
    const double total = shared.spec().n_layer();
    const Result<Plan> moved = make_plan(
        shared, machine(2), {.context = 256, .layer_weights = {l / total, 1 - l / total}});
    ASSERT_TRUE(moved) << moved.error().message;
    const int cut = moved->shards[0].layout.end_layer;
    EXPECT_TRUE(cut <= a->kv_source || cut > l) << cut;
  }
}

TEST(ShardPlanner, RefusesMoreDevicesThanParts) {
  const Model model = golden("qwen3");
  const Result<Plan> plan = make_plan(model, machine(model.spec().n_layer() + 1), {.context = 256});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::invalid);
  EXPECT_NE(plan.error().message.find("devices"), std::string::npos) << plan.error().message;
  EXPECT_FALSE(make_plan(model, machine(2), {.context = 256, .layer_weights = {1, 1, 1}}));
}

TEST(ShardPlanner, BalancesEqualLayers) {
  const Model model = golden("qwen3");  // equal layers
  const int n = model.spec().n_layer();
  for (int devices = 1; devices <= n; ++devices) {
    const Result<Plan> plan = make_plan(model, machine(devices), {.context = 256});
    ASSERT_TRUE(plan) << plan.error().message;
    for (const ShardPlan& shard : plan->shards) {
      const int layers = shard.layout.end_layer - shard.layout.first_layer;
      EXPECT_GE(layers, n / devices);
      EXPECT_LE(layers, (n + devices - 1) / devices);
    }
  }
}

TEST(ShardPlanner, ThreadsCountAsSpeed) {
  const Model model = golden("laguna");
  Inventory inventory = machine(2);
  inventory.devices[1].threads = 100;
  const Result<Plan> plan = make_plan(model, inventory, {.context = 256});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->shards[0].layout.end_layer, 1);
}

TEST(ShardPlanner, BudgetsMoveTheCut) {
  const Model model = golden("qwen3");
  const PlanOptions options{.context = 256};
  const Result<Plan> roomy = make_plan(model, machine(2), options);
  ASSERT_TRUE(roomy);
  ASSERT_GT(roomy->shards[1].layout.end_layer - roomy->shards[1].layout.first_layer, 1);
  Inventory tight = machine(2);
  tight.devices[1].budget = roomy->shards[1].total_bytes() - 1;
  const Result<Plan> plan = make_plan(model, tight, options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GT(plan->shards[1].layout.first_layer, roomy->shards[1].layout.first_layer);
  EXPECT_GE(plan->shards[1].free_bytes(), 0);
  EXPECT_EQ(plan->shards[1].budget_bytes, *tight.devices[1].budget);

  // The same cut by weights does not fit, and the message says which does.
  PlanOptions fixed = options;
  fixed.layer_weights = {1, 1};
  const Result<Plan> refused = make_plan(model, tight, fixed);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::exhausted);
  const std::string& message = refused.error().message;
  EXPECT_NE(message.find("cpu:1 lacks 1 B"), std::string::npos) << message;
  EXPECT_NE(message.find("--target-layer-split"), std::string::npos) << message;
  EXPECT_NE(message.find("would fit"), std::string::npos) << message;
}

TEST(ShardPlanner, SaysHowManyLayersFit) {
  const Model model = golden("qwen3");
  const PlanOptions options{.context = 256};
  const Result<Plan> roomy = make_plan(model, machine(2), options);
  ASSERT_TRUE(roomy);
  Inventory tight = machine(2);
  tight.devices[0].budget = roomy->shards[0].total_bytes() + roomy->process_bytes;
  tight.devices[1].budget = 1000;
  const Result<Plan> plan = make_plan(model, tight, options);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::exhausted);
  const std::string held = fmt::format("hold {} of {} layers", roomy->shards[0].layout.end_layer,
                                       model.spec().n_layer());
  EXPECT_NE(plan.error().message.find(held), std::string::npos) << plan.error().message;
  EXPECT_NE(plan.error().message.find("cpu:1 lacks"), std::string::npos) << plan.error().message;
}

TEST(ShardPlanner, DevicesOfOneMemoryShareIt) {
  const Model model = golden("laguna");
  const PlanOptions options{.context = 512};
  const Result<Plan> roomy = make_plan(model, machine(3), options);
  ASSERT_TRUE(roomy);
  EXPECT_TRUE(make_plan(model, machine(3, roomy->total_bytes()), options));
  const Result<Plan> plan = make_plan(model, machine(3, roomy->total_bytes() - 1), options);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("lacks 1 B"), std::string::npos) << plan.error().message;
  // Each with a memory of its own needs only its own part.
  Inventory apart = machine(3, roomy->total_bytes() - 1);
  for (int i = 0; i < 3; ++i) apart.devices[static_cast<std::size_t>(i)].memory = i;
  EXPECT_TRUE(make_plan(model, apart, options));
}

TEST(ShardPlanner, MoreFreeThanThereIsNeverWraps) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Model model = golden("qwen3");
  for (const int devices : {1, 2}) {
    const PlanOptions options{.context = 256};
    Inventory inventory = machine(devices, kMost);
    Result<Plan> plan = make_plan(model, inventory, options);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_LE(plan->shards.front().budget_bytes, kPlenty);
    EXPECT_GT(plan->shards.front().free_bytes(), 0);
    // Little memory of which a probe says that much is free.
    for (DeviceInventory& device : inventory.devices) device.memory_total = 1 << 20;
    EXPECT_FALSE(make_plan(model, inventory, options));
    for (DeviceInventory& device : inventory.devices) device.memory_free = -5;
    EXPECT_FALSE(make_plan(model, inventory, options));
    for (DeviceInventory& device : inventory.devices) device.budget = kMost;
    plan = make_plan(model, inventory, options);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_GT(plan->shards.back().free_bytes(), 0);
  }
}

TEST(ShardPlanner, TheContextGivesWayToTheTightestBudget) {
  const Model model = golden("qwen3");
  const Result<Plan> roomy = make_plan(model, machine(2), {.parallel = 8});
  ASSERT_TRUE(roomy);
  Inventory tight = machine(2);
  for (std::size_t i = 0; i < 2; ++i)
    tight.devices[i].budget = roomy->shards[i].total_bytes() + roomy->shards[i].host_bytes -
                              roomy->shards[i].kv_bytes / 4;
  const Result<Plan> plan = make_plan(model, tight, {.parallel = 8});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->context, roomy->context / 2);
}

TEST(ShardPlanner, PrintsEveryShard) {
  const Result<Plan> plan = make_plan(golden("laguna"), machine(2), {.context = 512});
  ASSERT_TRUE(plan) << plan.error().message;
  const nlohmann::ordered_json json = plan_json(*plan);
  ASSERT_EQ(json["shards"].size(), 2u);
  std::int64_t total = plan->process_bytes;
  for (const auto& shard : json["shards"]) total += shard["total_bytes"].get<std::int64_t>();
  EXPECT_EQ(json["total_bytes"].get<std::int64_t>(), total);
  EXPECT_EQ(json["shards"][1]["device"], "cpu:1");
  const std::string table = plan_table(*plan);
  for (const char* part : {"cpu:0", "cpu:1", "threads", "recurrent", "+embedding", "+head"})
    EXPECT_NE(table.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace tessera
