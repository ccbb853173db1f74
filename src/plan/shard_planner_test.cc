// Plans over several devices: every byte counted in the shard that holds it, budgets kept, and
// refusals that say what would fit.
#include "plan/shard_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>

#include "device/cpu/cpu_device.h"
#include "model/synth.h"

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

// Twelve equal layers.
const Model& deep() {
  static const Model* const kModel = [] {
    const std::string path = ::testing::TempDir() + "deep_model_test.gguf";
    EXPECT_TRUE(write_synthetic_model(
        {.family = "qwen3", .preset = "tiny", .overrides = {"block_count=12"}}, path));
    Result<Model> model = Model::open(path);
    EXPECT_TRUE(model) << model.error().message;
    std::filesystem::remove(path);
    return new Model(*std::move(model));
  }();
  return *kModel;
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
  for (DeviceInventory& device : tight.devices) device.has_file = false;
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

  // With the file at hand, that cut leaves weights there; without one asked for, the cut moves.
  for (DeviceInventory& device : tight.devices) device.has_file = true;
  const Result<Plan> left = make_plan(model, tight, fixed);
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_EQ(left->shards[1].layout.first_layer, roomy->shards[1].layout.first_layer);
  EXPECT_GT(left->shards[1].file_bytes, 0);
  const Result<Plan> moved = make_plan(model, tight, options);
  ASSERT_TRUE(moved) << moved.error().message;
  EXPECT_EQ(ends(*moved), ends(*plan));
  EXPECT_EQ(moved->shards[1].file_bytes, 0);
}

// Two workers here hold their layers in memory that they share with this process, and one elsewhere
// has room: each range by itself would fit, all of them only where the one elsewhere takes more.
TEST(ShardPlanner, MemoryThatIsSharedMovesTheCut) {
  const Model& model = deep();
  const PlanOptions options{.context = 256, .prefill_chunk = 16};
  Inventory inventory = machine(4);
  for (const std::size_t i : {1, 2, 3}) {
    inventory.devices[i].remote = true;
    inventory.devices[i].has_file = false;
    inventory.devices[i].name = fmt::format("worker:{}", i);
  }
  for (const std::size_t i : {1, 2}) inventory.devices[i].most = kPlenty;
  inventory.devices[3].memory = 1;
  const Result<Plan> roomy = make_plan(model, inventory, options);
  ASSERT_TRUE(roomy) << roomy.error().message;
  std::int64_t here = 0;
  for (const std::size_t i : {0, 1, 2})
    here += roomy->shards[i].total_bytes() + roomy->shards[i].host_bytes;
  const std::int64_t free = here - roomy->shards[2].weight_bytes / 2;
  for (const std::size_t i : {0, 1, 2}) inventory.devices[i].memory_free = free;
  inventory.devices[0].has_file = false;
  const Result<Plan> plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan) << plan.error().message;
  for (const ShardPlan& shard : plan->shards) EXPECT_GE(shard.free_bytes(), 0) << shard.device;
  EXPECT_LT(plan->shards[3].layout.first_layer, roomy->shards[3].layout.first_layer);
  std::int64_t used = 0;
  for (const std::size_t i : {0, 1, 2})
    used += plan->shards[i].total_bytes() + plan->shards[i].host_bytes;
  EXPECT_LE(used, free);

  // That cut by hand does not fit, and the message says which does.
  PlanOptions fixed = options;
  for (const ShardPlan& shard : roomy->shards)
    fixed.layer_weights.push_back(shard.layout.end_layer - shard.layout.first_layer);
  const Result<Plan> refused = make_plan(model, inventory, fixed);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("--target-layer-split"), std::string::npos)
      << refused.error().message;

  // What a worker here allows is kept too, and nothing of it set aside.
  for (const std::size_t i : {0, 1, 2}) inventory.devices[i].memory_free = kPlenty;
  inventory.devices[1].most = roomy->shards[1].total_bytes() + roomy->shards[1].host_bytes - 1;
  const Result<Plan> allowed = make_plan(model, inventory, options);
  ASSERT_TRUE(allowed) << allowed.error().message;
  EXPECT_LE(allowed->shards[1].total_bytes() + allowed->shards[1].host_bytes,
            *inventory.devices[1].most);
}

TEST(ShardPlanner, SaysHowManyLayersFit) {
  const Model model = golden("qwen3");
  const PlanOptions options{.context = 256};
  const Result<Plan> roomy = make_plan(model, machine(2), options);
  ASSERT_TRUE(roomy);
  Inventory tight = machine(2);
  for (DeviceInventory& device : tight.devices) device.has_file = false;
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
  Inventory tight = machine(3, roomy->total_bytes() - 1);
  EXPECT_TRUE(make_plan(model, tight, options));  // some weights stay in the file
  for (DeviceInventory& device : tight.devices) device.has_file = false;
  PlanOptions fixed = options;  // another cut may take less
  for (const ShardPlan& shard : roomy->shards)
    fixed.layer_weights.push_back(shard.layout.end_layer - shard.layout.first_layer);
  const Result<Plan> plan = make_plan(model, tight, fixed);
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

TEST(ShardPlanner, WarnsOfBudgetsThatAreMoreThanThereIs) {
  const Model model = golden("qwen3");
  const auto warnings = [&](std::int64_t first, std::int64_t second) {
    Inventory inventory = machine(2);
    inventory.devices[0].budget = first;
    inventory.devices[1].budget = second;
    const Result<Plan> plan = make_plan(model, inventory, {.context = 256});
    EXPECT_TRUE(plan) << plan.error().message;
    for (const std::string& warning : plan->warnings)
      EXPECT_NE(plan_table(*plan).find(warning), std::string::npos);
    EXPECT_EQ(plan_json(*plan)["warnings"].size(), plan->warnings.size());
    return plan->warnings;
  };
  EXPECT_TRUE(warnings(kPlenty / 2, kPlenty / 2).empty());
  const std::vector<std::string> together = warnings(kPlenty / 2, kPlenty / 2 + (1 << 20));
  ASSERT_EQ(together.size(), 1u);
  EXPECT_EQ(together[0],
            "The budgets of cpu:0, cpu:1 share a memory of 32.00 GiB and are 1.0 MiB more "
            "together.");
  const std::vector<std::string> alone =
      warnings(kPlenty / 2, std::numeric_limits<std::int64_t>::max());
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_NE(alone[0].find("The budget of cpu:1"), std::string::npos) << alone[0];
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

// What leaves the memory of a worker with layers stays in its file: it reaches no other worker.
TEST(ShardPlanner, ExpertsLeaveAWorkersMemoryToo) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(2);
  inventory.devices[1].remote = true;
  inventory.expert_workers.push_back({.name = "worker:1", .budget = kPlenty});
  const Result<Plan> plan = make_plan(
      model, inventory, {.context = 256, .expert_resident = 50.0, .expert_spare = {.places = 2}});
  ASSERT_TRUE(plan) << plan.error().message;
  const ShardPlan &here = plan->shards[0], &there = plan->shards[1];
  EXPECT_EQ(here.experts_host, 0);
  EXPECT_EQ(here.experts_worker, here.experts);
  EXPECT_EQ(there.experts_worker, 0);
  EXPECT_EQ(there.experts_host, there.experts);
  EXPECT_GT(there.offload_bytes, 0);
  for (const LayerExperts& layer : there.layout.experts)
    EXPECT_EQ(layer.spare, layer.home.empty() ? 0 : 2);
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

// --- Experts away from their layers' devices ---

// Its experts outweigh the rest.
const Model& expert_heavy() {
  static const Model* const kModel = [] {
    const std::string path = ::testing::TempDir() + "shard_planner_test.gguf";
    EXPECT_TRUE(write_synthetic_model({.preset = "tiny", .overrides = {"expert_count=256"}}, path));
    Result<Model> model = Model::open(path);
    EXPECT_TRUE(model) << model.error().message;
    std::filesystem::remove(path);
    return new Model(*std::move(model));
  }();
  return *kModel;
}

TEST(ShardPlanner, ExpertsLeaveADeviceThatIsTooSmall) {
  const Model& model = expert_heavy();
  const PlanOptions options{.context = 256, .prefill_chunk = 16};
  Inventory inventory = machine(1);
  const Result<Plan> all = make_plan(model, inventory, options);
  ASSERT_TRUE(all);
  const ShardPlan& whole = all->shards[0];
  EXPECT_TRUE(whole.layout.experts.empty());
  std::int64_t layer_bytes = 0;  // of an expert of every layer
  for (const std::int64_t bytes : cpu_expert_bytes(model, whole.layout)) layer_bytes += bytes;
  int before = 256 * model.spec().n_layer();
  for (const int gone : {20, 80, 160}) {
    inventory.devices[0].budget = whole.total_bytes() + whole.host_bytes - gone * layer_bytes;
    const Result<Plan> part = make_plan(model, inventory, options);
    ASSERT_TRUE(part) << part.error().message;
    const ShardPlan& shard = part->shards[0];
    EXPECT_GE(shard.free_bytes(), 0);
    EXPECT_LT(shard.free_bytes(), layer_bytes);
    EXPECT_EQ(shard.experts + shard.experts_host, whole.experts);
    EXPECT_LT(shard.experts, before);
    EXPECT_GT(shard.offload_bytes, 0);
    EXPECT_GT(shard.cold_share, 0.0);
    EXPECT_EQ(shard.weight_bytes, cpu_footprint(model, shard.layout, 1).weights);
    before = shard.experts;
  }
  inventory.devices[0].budget = whole.host_bytes + (std::int64_t{1} << 20);
  const Result<Plan> none = make_plan(model, inventory, options);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::exhausted);
  EXPECT_NE(none.error().message.find("cpu:0 lacks"), std::string::npos) << none.error().message;
}

// A worker on this machine that has no file to leave experts to takes what its layers need of the
// memory; experts leave this process.
TEST(ShardPlanner, WorkersHereTakeWhatTheyNeed) {
  const Model& model = expert_heavy();
  const PlanOptions options{.context = 256, .prefill_chunk = 16};
  Inventory inventory = machine(2);
  inventory.devices[1].remote = true;
  inventory.devices[1].has_file = false;
  inventory.devices[1].name = "worker:0";
  const Result<Plan> roomy = make_plan(model, inventory, options);
  ASSERT_TRUE(roomy);
  const auto used = [](const ShardPlan& shard) { return shard.total_bytes() + shard.host_bytes; };
  const std::int64_t all = used(roomy->shards[0]) + used(roomy->shards[1]);
  const std::int64_t free = all - roomy->shards[0].weight_bytes / 2;
  for (DeviceInventory& device : inventory.devices) device.memory_free = free;
  const Result<Plan> tight = make_plan(model, inventory, options);
  ASSERT_TRUE(tight) << tight.error().message;
  EXPECT_EQ(tight->shards[1].total_bytes(), roomy->shards[1].total_bytes());
  EXPECT_GT(tight->shards[0].experts_host, 0);
  EXPECT_LE(used(tight->shards[0]) + used(tight->shards[1]), free);
  for (const ShardPlan& shard : tight->shards) EXPECT_GE(shard.free_bytes(), 0);
  // Two devices of this process share what there is by their ranges' needs.
  inventory = machine(2, free);
  const Result<Plan> local = make_plan(model, inventory, options);
  ASSERT_TRUE(local) << local.error().message;
  for (const ShardPlan& shard : local->shards) EXPECT_GT(shard.experts_host, 0);
  EXPECT_LE(used(local->shards[0]) + used(local->shards[1]), free);
}

TEST(ShardPlanner, PercentOfResidentsIsKeptToTheByte) {
  const Model model = golden("qwen35moe");
  const Result<Plan> all = make_plan(model, machine(1), {.context = 256});
  ASSERT_TRUE(all);
  const std::vector<std::int64_t> each = cpu_expert_bytes(model, all->shards[0].layout);
  for (const double percent : {0.0, 25.0, 50.0}) {
    const Result<Plan> plan =
        make_plan(model, machine(1), {.context = 256, .expert_resident = percent});
    ASSERT_TRUE(plan);
    std::int64_t away = 0;
    for (int l = 0; l < model.spec().n_layer(); ++l) {
      const LayerExperts* experts = plan->shards[0].layout.layer_experts(l);
      if (experts == nullptr) continue;
      const auto n = static_cast<int>(experts->home.size());
      EXPECT_EQ(experts->resident(), std::lround(percent / 100.0 * n));
      away += (n - experts->resident()) * each[static_cast<std::size_t>(l)];
    }
    EXPECT_EQ(plan->shards[0].weight_bytes, all->shards[0].weight_bytes - away);
    // In the file an expert is as large, but for what rounds up to whole lines.
    EXPECT_LE(plan->shards[0].mapped_bytes, away);
    EXPECT_GE(plan->shards[0].mapped_bytes, away * 9 / 10);
    EXPECT_NEAR(plan->shards[0].cold_share, 1.0 - percent / 100.0, 1e-9);
  }
}

TEST(ShardPlanner, AProfileDecidesWhoStays) {
  const Model model = golden("qwen35moe");
  PlanOptions options{.context = 256, .expert_resident = 25.0};
  for (const LayerSpec& layer : model.spec().layers) {
    auto& counts = options.expert_counts.emplace_back();
    for (int e = 0; layer.moe && e < layer.moe->n_expert; ++e)
      counts.push_back(e % 4 == 3 ? 10.0 : 1.0);
  }
  const Result<Plan> plan = make_plan(model, machine(1), options);
  ASSERT_TRUE(plan);
  for (int l = 0; l < model.spec().n_layer(); ++l) {
    const LayerExperts* experts = plan->shards[0].layout.layer_experts(l);
    for (std::size_t e = 0; experts != nullptr && e < experts->home.size(); ++e)
      EXPECT_EQ(experts->home[e].is_resident(), e % 4 == 3) << l << " " << e;
  }
}

TEST(ShardPlanner, WorkersTakeExpertsBeforeTheHost) {
  const Model model = golden("qwen35moe");
  Inventory inventory = machine(1);
  inventory.expert_workers = {{.name = "worker:0", .budget = kPlenty}};
  PlanOptions options{.context = 256, .expert_resident = 50.0};
  Result<Plan> plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->shards[0].experts_host, 0);
  EXPECT_GT(plan->shards[0].experts_worker, 0);
  const ExpertWorkerPlan& worker = plan->expert_workers.front();
  inventory.expert_workers[0].budget = worker.scratch_bytes + worker.weight_bytes / 2;
  plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan);
  EXPECT_GT(plan->shards[0].experts_host, 0);
  EXPECT_GT(plan->shards[0].experts_worker, 0);
}

// The published dimensions, without the weights.
const Model& full_preset() {
  static const Model* const kModel = [] {
    const std::string path = ::testing::TempDir() + "full_preset_test.gguf";
    EXPECT_TRUE(
        write_synthetic_model({.family = "qwen35moe", .preset = "full", .hollow = true}, path));
    Result<Model> model = Model::open(path);
    EXPECT_TRUE(model) << model.error().message;
    std::filesystem::remove(path);
    return new Model(*std::move(model));
  }();
  return *kModel;
}

TEST(ShardPlanner, ExpertsThatDoNotFitLeaveAWorkersMemory) {
  Inventory inventory = machine(2);
  inventory.devices[1].remote = true;
  inventory.devices[1].budget = std::int64_t{6} << 30;
  const Result<Plan> plan =
      make_plan(full_preset(), inventory, {.context = 4096, .layer_weights = {1, 1}});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->shards[0].experts_host, 0);
  EXPECT_GT(plan->shards[1].experts_host, 0);
  EXPECT_GT(plan->shards[1].experts, 0);
  EXPECT_GE(plan->shards[1].free_bytes(), 0);
}

// Prints the processor time of a plan, the least of five; docs/results.md says what to expect.
TEST(ShardPlanner, PlansAFullModel) {
  const Model& model = full_preset();
  PlanOptions options{.context = 32768, .parallel = 4};
  for (const bool budgets : {true, false}) {
    for (const std::int64_t gib : {64, 16, 8}) {
      for (const int devices : {1, 2, 3, 4}) {
        Inventory inventory = machine(devices, gib << 30);
        for (DeviceInventory& device : inventory.devices)
          if (budgets) device.budget = (gib << 30) / devices;
        double best = 1e9;
        for (int i = 0; i < 5; ++i) {
          const std::clock_t start = std::clock();
          const Result<Plan> plan = make_plan(model, inventory, options);
          best = std::min(best, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
          ASSERT_TRUE(plan) << plan.error().message;
          EXPECT_EQ(plan->shards[0].layout.experts.empty(), gib == 64);
          for (const ShardPlan& shard : plan->shards) EXPECT_GE(shard.free_bytes(), 0);
        }
        std::printf("%d devices of %d GiB together, %s: %.2f ms\n", devices, static_cast<int>(gib),
                    budgets ? "a budget each" : "no budgets", best);
      }
    }
  }
}

// Where some cut fits the budgets, the planner finds one that does.
TEST(ShardPlanner, FindsACutWhereThereIsOne) {
  const Model& model = deep();
  const PlanOptions options{.context = 256};
  const Result<Plan> roomy = make_plan(model, machine(3), options);
  ASSERT_TRUE(roomy);
  std::mt19937 random(5);
  std::uniform_real_distribution<double> part(0.3, 2.0);
  int found = 0;
  for (int round = 0; round < 12; ++round) {
    Inventory inventory = machine(3);
    for (std::size_t i = 0; i < 3; ++i) {
      const ShardPlan& shard = roomy->shards[i];
      inventory.devices[i].has_file = false;
      inventory.devices[i].budget =
          shard.host_bytes +
          static_cast<std::int64_t>(part(random) * static_cast<double>(shard.total_bytes()));
    }
    bool any = false;
    for (int a = 1; a <= 10 && !any; ++a)
      for (int b = 1; a + b <= 11 && !any; ++b) {
        PlanOptions cut = options;
        cut.layer_weights = {static_cast<double>(a), static_cast<double>(b), 12.0 - a - b};
        any = make_plan(model, inventory, cut).ok();
      }
    EXPECT_EQ(make_plan(model, inventory, options).ok(), any) << round;
    found += any ? 1 : 0;
  }
  EXPECT_GT(found, 0);
  EXPECT_LT(found, 12);
}

// Routing drawn without replacement from a Zipf law, in another order in each layer.
class ZipfRouting {
 public:
  ZipfRouting(int experts, int used, unsigned layer) : used_(used), random_(7919 * (layer + 1)) {
    std::vector<double> weights;
    for (int e = 0; e < experts; ++e) weights.push_back(1.0 / (e + 1.0));
    std::shuffle(weights.begin(), weights.end(), random_);
    draw_ = std::discrete_distribution<int>(weights.begin(), weights.end());
  }
  std::vector<int> row() {
    std::vector<int> chosen;
    while (static_cast<int>(chosen.size()) < used_) {
      const int e = draw_(random_);
      if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
    }
    return chosen;
  }

 private:
  int used_;
  std::mt19937 random_;
  std::discrete_distribution<int> draw_;
};

TEST(ShardPlanner, ASkewedProfileHalvesThePairsAway) {
  const Model& model = full_preset();
  const MoeSpec& moe = *model.spec().layers[0].moe;
  std::vector<ZipfRouting> routing;
  PlanOptions options{.context = 4096, .expert_resident = 50.0};
  const Result<Plan> blind = make_plan(model, machine(1), options);
  for (unsigned l = 0; l < static_cast<unsigned>(model.spec().n_layer()); ++l) {
    routing.emplace_back(moe.n_expert, moe.n_used, l);
    auto& counts = options.expert_counts.emplace_back(static_cast<std::size_t>(moe.n_expert), 0.0);
    for (int row = 0; row < 2000; ++row)
      for (const int e : routing.back().row()) counts[static_cast<std::size_t>(e)] += 1.0;
  }
  const Result<Plan> known = make_plan(model, machine(1), options);
  ASSERT_TRUE(blind && known);
  EXPECT_EQ(blind->shards[0].weight_bytes, known->shards[0].weight_bytes);
  int blind_away = 0, known_away = 0;
  for (int l = 0; l < model.spec().n_layer(); ++l)
    for (int row = 0; row < 200; ++row)  // that the profile has not seen
      for (const int e : routing[static_cast<std::size_t>(l)].row()) {
        const auto at = static_cast<std::size_t>(e);
        blind_away += blind->shards[0].layout.layer_experts(l)->home[at].is_resident() ? 0 : 1;
        known_away += known->shards[0].layout.layer_experts(l)->home[at].is_resident() ? 0 : 1;
      }
  std::printf("pairs away: %d with the profile, %d without\n", known_away, blind_away);
  EXPECT_LE(2 * known_away, blind_away);
}

}  // namespace
}  // namespace tessera
