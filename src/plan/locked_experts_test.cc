// Plans whose experts away are locked in memory (--expert-prefault lock): they do not give way, so
// they are taken, within the budget of a CPU device.
#include <gtest/gtest.h>

#include "experts/prefault.h"
#include "plan/planner_rig.h"

namespace tessera {
namespace {

std::int64_t used(const ShardPlan& shard) {
  return shard.total_bytes() + shard.host_bytes;
}

TEST(LockedExperts, AreTaken) {
  const Model& model = expert_heavy();
  PlanOptions options{.context = 256, .prefill_chunk = 16, .expert_resident = 50.0};
  const Result<Plan> mapped = make_plan(model, machine(1), options);
  options.lock_experts = true;
  const Result<Plan> locked = make_plan(model, machine(1), options);
  ASSERT_TRUE(mapped && locked);
  const ShardPlan &before = mapped->shards[0], &shard = locked->shards[0];
  EXPECT_EQ(before.locked_bytes, 0);
  EXPECT_EQ(shard.locked_bytes, locked_bytes(model, shard.layout));
  EXPECT_GE(shard.locked_bytes, before.mapped_bytes);
  EXPECT_EQ(shard.mapped_bytes, 0);
  EXPECT_EQ(shard.total_bytes(), before.total_bytes() + shard.locked_bytes);
  EXPECT_EQ(locked->total_bytes(), mapped->total_bytes() + shard.locked_bytes);
  EXPECT_EQ(shard.free_bytes(), before.free_bytes() - shard.locked_bytes);
  const std::string table = plan_table(*locked);
  EXPECT_NE(table.find("Experts away from cpu:0 are locked in memory: "), std::string::npos);
  EXPECT_EQ(table.find("page cache"), std::string::npos) << table;
}

TEST(LockedExperts, AreWithinTheBudget) {
  const Model& model = expert_heavy();
  PlanOptions options{.context = 256, .prefill_chunk = 16, .expert_resident = 50.0};
  options.lock_experts = true;
  Inventory inventory = machine(1);
  inventory.devices[0].budget = kPlenty;
  const Result<Plan> roomy = make_plan(model, inventory, options);
  ASSERT_TRUE(roomy) << roomy.error().message;
  const std::int64_t locked = roomy->shards[0].locked_bytes;
  inventory.devices[0].budget = used(roomy->shards[0]);
  EXPECT_TRUE(make_plan(model, inventory, options));
  inventory.devices[0].budget = used(roomy->shards[0]) - locked;
  const Result<Plan> refused = make_plan(model, inventory, options);
  if (refused) {  // other weights stay in the file
    EXPECT_GT(refused->shards[0].file_bytes, 0);
  }
  options.lock_experts = false;
  const Result<Plan> mapped = make_plan(model, inventory, options);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(mapped->shards[0].file_bytes, 0);
}

// A locked expert takes about as much as a resident one: where the budget is too small for all,
// sending experts away helps little, and without the lock it does.
TEST(LockedExperts, DoNotMakeRoomByLeaving) {
  const Model& model = expert_heavy();
  PlanOptions options{.context = 256, .prefill_chunk = 16};
  const Result<Plan> all = make_plan(model, machine(1), options);
  ASSERT_TRUE(all);
  options.lock_experts = true;
  Inventory inventory = machine(1);
  int refusals = 0;
  for (int percent = 20; percent <= 100; percent += 10) {
    const ShardPlan& whole = all->shards[0];
    inventory.devices[0].budget = whole.host_bytes + whole.total_bytes() * percent / 100;
    const Result<Plan> plan = make_plan(model, inventory, options);
    if (plan) {
      EXPECT_GE(plan->shards[0].free_bytes(), 0) << percent;
      continue;
    }
    ++refusals;
    const std::string& text = plan.error().message;
    EXPECT_NE(text.find(", experts locked in memory "), std::string::npos) << text;
    EXPECT_NE(text.find("--expert-prefault on"), std::string::npos) << text;
    PlanOptions on = options;
    on.lock_experts = false;
    EXPECT_TRUE(make_plan(model, inventory, on));
  }
  EXPECT_GT(refusals, 0);
}

// What is away from a GPU is locked in the memory of this process.
TEST(LockedExperts, OfAGpuAreThisProcesss) {
  const Model& model = expert_heavy();
  PlanOptions options{.context = 256, .prefill_chunk = 16, .expert_resident = 50.0};
  Inventory inventory = machine(1);
  inventory.devices[0].name = "cuda:0";
  inventory.devices[0].kind = DeviceKind::cuda;
  inventory.devices[0].memory = 1;
  const Result<Plan> mapped = make_plan(model, inventory, options);
  options.lock_experts = true;
  const Result<Plan> locked = make_plan(model, inventory, options);
  ASSERT_TRUE(mapped && locked) << locked.error().message;
  EXPECT_GT(locked->shards[0].locked_bytes, 0);
  EXPECT_EQ(locked->shards[0].total_bytes(), mapped->shards[0].total_bytes());
  EXPECT_EQ(locked->total_bytes(), mapped->total_bytes() + locked->shards[0].locked_bytes);
}

// A worker of layers locks nothing.
TEST(LockedExperts, AreNotThoseOfWorkers) {
  PlanOptions options{.context = 256, .prefill_chunk = 16, .expert_resident = 50.0};
  options.lock_experts = true;
  Inventory inventory = machine(2);
  inventory.devices[1].remote = true;
  const Result<Plan> plan = make_plan(expert_heavy(), inventory, options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GT(plan->shards[0].locked_bytes, 0);
  EXPECT_EQ(plan->shards[1].locked_bytes, 0);
  EXPECT_GT(plan->shards[1].mapped_bytes, 0);
}

}  // namespace
}  // namespace tessera
