// Plans over devices and workers that share a memory: what each takes is taken from all, cuts move
// for it, and budgets that are more than the memory are warned of.

#include <gtest/gtest.h>

#include <cstdio>
#include <limits>

#include "device/gpu/gpu_layout.h"
#include "plan/footprint.h"
#include "plan/planner_rig.h"

namespace tessera {
namespace {

// Two workers here hold their layers in memory that they share with this process, and one elsewhere
// has room: each range by itself would fit, all of them only where the one elsewhere takes more.
TEST(SharedMemory, MemoryThatIsSharedMovesTheCut) {
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

TEST(SharedMemory, DevicesOfOneMemoryShareIt) {
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

// One of them alone needs more than there is: what that leaves the other is no budget.
TEST(SharedMemory, TheRefusalCountsNothingBelowZero) {
  const Model model = golden("laguna");
  const Result<Plan> plan = make_plan(model, machine(2, 1 << 20), {.context = 256});
  ASSERT_FALSE(plan);
  const std::string& text = plan.error().message;
  EXPECT_NE(text.find("against 1.0 MiB of free memory, of which the others need "),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find(" -"), std::string::npos) << text;
}

TEST(SharedMemory, MoreFreeThanThereIsNeverWraps) {
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

// Budgets that are each all that can be counted leave the device without one nothing, and not much.
TEST(SharedMemory, BudgetsWithoutEndNeverWrap) {
  Inventory inventory = machine(3);
  for (const std::size_t i : {0, 1})
    inventory.devices[i].budget = std::numeric_limits<std::int64_t>::max();
  for (DeviceInventory& device : inventory.devices) device.memory_free = 1 << 20;
  const Result<Plan> plan = make_plan(deep(), inventory, {.context = 256});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::exhausted) << plan.error().message;
}

// Parts that are together more than can be counted are more than any budget.
TEST(SharedMemory, SumsOfBytesNeverWrap) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Footprint bytes{.weights = kMost / 2, .kv = kMost / 2, .scratch = kMost / 2};
  EXPECT_EQ(bytes.total(), kMost);
  const ShardPlan shard{.weight_bytes = kMost / 2,
                        .kv_bytes = kMost / 2,
                        .host_bytes = kMost / 2,
                        .budget_bytes = kPlenty,
                        .offload_bytes = kMost / 2};
  EXPECT_EQ(shard.total_bytes(), kMost);
  EXPECT_LT(shard.free_bytes(), 0);
  Plan plan{.process_bytes = kMost / 2};
  plan.shards = {shard, shard};
  EXPECT_EQ(plan.total_bytes(), kMost);
}

// A connection that takes all that can be counted: its worker of experts has no room for any.
TEST(SharedMemory, AConnectionWithoutEndLeavesNoRoom) {
  const PlanOptions options{.context = 256, .prefill_chunk = 16, .expert_resident = 50.0};
  Inventory inventory = machine(1);
  inventory.expert_workers = {{.name = "worker:0", .here = true, .budget = kPlenty}};
  inventory.expert_workers[0].connection = [](const ExpertJobs&) {
    return ConnectionBytes{.there = std::numeric_limits<std::int64_t>::max()};
  };
  const Result<Plan> plan = make_plan(expert_heavy(), inventory, options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->expert_workers[0].experts, 0);
  EXPECT_GT(plan->shards[0].experts_host, 0);
}

// The refusal counts what lacks up to the end, and names it as what would fit.
TEST(SharedMemory, ShortagesNeverWrap) {
  for (const bool shared : {true, false}) {
    Inventory inventory = machine(3);
    for (const std::size_t i : {1, 2}) {
      DeviceInventory& worker = inventory.devices[i];
      worker.name = fmt::format("worker:{}", i);
      worker.remote = true;
      if (!shared) worker.budget = kPlenty;
      worker.connection = [](const ShardLayout&) {
        return ConnectionBytes{.there = std::numeric_limits<std::int64_t>::max()};
      };
    }
    const Result<Plan> plan = make_plan(expert_heavy(), inventory, {.context = 256});
    ASSERT_FALSE(plan);
    const std::string& text = plan.error().message;
    EXPECT_EQ(text.find(" -"), std::string::npos) << text;
    EXPECT_NE(text.find(shared ? "8796093022208 MiB of free memory for cpu:0"
                               : "a budget of 8796093022208 MiB for worker:1"),
              std::string::npos)
        << text;
  }
}

// Sums that decide what stays where nothing fits.
TEST(SharedMemory, RoomBelowWhatCanBeCountedHoldsNothing) {
  const ExpertLoad load{.layers = {{.chance = {1.0, 1.0}, .expert_bytes = 1 << 20, .floor = 1}}};
  EXPECT_FALSE(residents_within(load, std::numeric_limits<std::int64_t>::min()));
}

TEST(SharedMemory, WarnsOfBudgetsThatAreMoreThanThereIs) {
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

// A worker of experts on this machine takes of the same memory; one elsewhere does not.
TEST(SharedMemory, WarnsOfTheBudgetsOfWorkersToo) {
  const Model& model = expert_heavy();
  for (const bool here : {true, false}) {
    Inventory inventory = machine(1);
    inventory.devices[0].budget = kPlenty / 2;
    inventory.expert_workers.push_back(
        {.name = "worker:0", .here = here, .budget = kPlenty / 2 + (1 << 20), .bounded = true});
    const Result<Plan> plan = make_plan(model, inventory, {.context = 256});
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_EQ(plan->warnings.size(), here ? 1u : 0u);
    if (here) {
      EXPECT_NE(plan->warnings[0].find("The budgets of cpu:0, worker:0 share"), std::string::npos)
          << plan->warnings[0];
    }
  }
}

// The bytes of a worker's GPU are those of a GPU, and the process of the worker is not on it.
TEST(SharedMemory, AWorkersGpuIsPlannedAsAGpu) {
  const Model& model = deep();
  Inventory inventory = machine(2);
  DeviceInventory& gpu = inventory.devices[1];
  gpu.name = "worker:0";
  gpu.remote = true;
  gpu.kind = DeviceKind::cuda;
  gpu.memory = 1;
  const Result<Plan> plan = make_plan(model, inventory, {.context = 256, .prefill_chunk = 16});
  ASSERT_TRUE(plan) << plan.error().message;
  const ShardPlan& shard = plan->shards[1];
  EXPECT_EQ(shard.kind, DeviceKind::cuda);
  EXPECT_TRUE(shard.remote);
  EXPECT_EQ(shard.total_bytes(), gpu_footprint(model, shard.layout).total());
  EXPECT_EQ(shard.host_bytes, kWorkerBytes);
  EXPECT_EQ(shard.charged_bytes(), shard.total_bytes());
}

// A worker on this machine that has no file to leave experts to takes what its layers need of the
// memory; experts leave this process.
TEST(SharedMemory, WorkersHereTakeWhatTheyNeed) {
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

// What a listening worker may use its own --budget says, whatever is asked for here.
TEST(SharedMemory, AListeningWorkersBudgetIsItsOwnToRaise) {
  for (const bool asked : {false, true}) {
    Inventory inventory = machine(2);
    inventory.devices[1].name = "worker:unix:/run/w.sock";
    inventory.devices[1].remote = true;
    inventory.devices[1].most = std::int64_t{1} << 20;
    if (asked) inventory.devices[1].budget = inventory.devices[1].most;
    const PlanOptions options{.context = 256};
    const Result<Plan> lacking = make_plan(deep(), inventory, options);
    ASSERT_FALSE(lacking);
    const std::string& text = lacking.error().message;
    const std::size_t advice = text.rfind("worker:unix:/run/w.sock started with ");
    ASSERT_NE(advice, std::string::npos) << text;
    long mib = 0;
    ASSERT_EQ(std::sscanf(text.c_str() + advice,
                          "worker:unix:/run/w.sock started with --budget %ldMiB would fit", &mib),
              1)
        << text;
    inventory.devices[1].most = std::int64_t{mib} << 20;
    if (asked) inventory.devices[1].budget = inventory.devices[1].most;
    EXPECT_TRUE(make_plan(deep(), inventory, options)) << text;
  }
}

}  // namespace
}  // namespace tessera
