// Plans without a CPU device of this process: its program and the ends of its connections are taken
// from the machine's memory all the same.
#include <gtest/gtest.h>

#include <cstdio>

#include "plan/planner_rig.h"

namespace tessera {
namespace {

constexpr std::int64_t kHere = std::int64_t{3} << 20;  // of each connection

// All layers at workers: on this machine, with what it has free, or elsewhere.
Inventory workers(int n, bool here, std::int64_t free_bytes = kPlenty) {
  Inventory inventory = machine(n, here ? free_bytes : kPlenty);
  inventory.memory_total = kPlenty;
  inventory.memory_free = free_bytes;
  for (int i = 0; i < n; ++i) {
    DeviceInventory& device = inventory.devices[static_cast<std::size_t>(i)];
    device.name = fmt::format("worker:{}", i);
    device.remote = true;
    device.memory = here ? kHostMemory : i + 1;
    device.connection = [](const ShardLayout&) { return ConnectionBytes{.here = kHere}; };
  }
  return inventory;
}

TEST(ProgramPlanner, ACpuDeviceHereIsChargedWithTheProgram) {
  const Result<Plan> plan = make_plan(deep(), machine(1), {.context = 256});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_FALSE(plan->program);
  EXPECT_EQ(plan->shards[0].host_bytes, plan->process_bytes);
}

TEST(ProgramPlanner, TheProgramSharesTheMachineWithItsWorkers) {
  const PlanOptions options{.context = 256, .prefill_chunk = 16};
  const Result<Plan> plan = make_plan(deep(), workers(2, true), options);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_TRUE(plan->program);
  EXPECT_EQ(plan->program->total_bytes(), plan->process_bytes + 2 * kHere);
  EXPECT_EQ(plan->total_bytes(), plan->process_bytes + 2 * kHere);
  const std::int64_t all =
      plan->shards[0].charged_bytes() + plan->shards[1].charged_bytes() + plan->total_bytes();
  EXPECT_EQ(plan->shards[0].free_bytes(), kPlenty - all);
  EXPECT_EQ(*plan->program->budget_bytes - plan->program->total_bytes(), kPlenty - all);
  EXPECT_NE(plan_table(*plan).find("This process takes "), std::string::npos);

  // To the byte: with one less, weights stay in the workers' files, or there is no plan.
  PlanOptions fixed = options;
  for (const ShardPlan& shard : plan->shards)
    fixed.layer_weights.push_back(shard.layout.end_layer - shard.layout.first_layer);
  for (const bool files : {true, false}) {
    for (const std::int64_t less : {0, 1}) {
      Inventory tight = workers(2, true, all - less);
      for (DeviceInventory& device : tight.devices) device.has_file = files;
      const Result<Plan> other = make_plan(deep(), tight, fixed);
      ASSERT_EQ(other.ok(), files || less == 0) << less;
      if (!other) continue;
      EXPECT_LE(other->shards[0].charged_bytes() + other->shards[1].charged_bytes() +
                    other->program->total_bytes(),
                all - less);
    }
  }
}

TEST(ProgramPlanner, AMachineThatCannotHoldTheProgramIsRefused) {
  const PlanOptions options{.context = 256, .prefill_chunk = 16};
  const Result<Plan> plan = make_plan(deep(), workers(2, false), options);
  ASSERT_TRUE(plan) << plan.error().message;
  const std::int64_t own = plan->program->total_bytes();
  EXPECT_EQ(*plan->program->budget_bytes, kPlenty);
  EXPECT_TRUE(make_plan(deep(), workers(2, false, own), options));
  const Result<Plan> refused = make_plan(deep(), workers(2, false, own - 1), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::exhausted);
  const std::string& text = refused.error().message;
  EXPECT_NE(text.find("this process lacks 1 B: program "), std::string::npos) << text;
  const std::size_t advice = text.find("; ");
  ASSERT_NE(advice, std::string::npos) << text;
  long mib = 0;
  ASSERT_EQ(std::sscanf(text.c_str() + advice, "; %ld MiB of free memory for this process", &mib),
            1)
      << text;
  EXPECT_TRUE(make_plan(deep(), workers(2, false, std::int64_t{mib} << 20), options)) << text;
}

// Budgets of workers here are kept for them, and the program has what they leave.
TEST(ProgramPlanner, TheProgramHasWhatBudgetsOfWorkersLeave) {
  const PlanOptions options{.context = 256, .prefill_chunk = 16};
  Inventory inventory = workers(1, true);
  inventory.devices[0].budget = kPlenty;
  const Result<Plan> plan = make_plan(deep(), inventory, options);
  ASSERT_TRUE(plan) << plan.error().message;
  const std::int64_t all = plan->shards[0].charged_bytes() + plan->program->total_bytes();
  for (const std::int64_t less : {0, 1}) {
    inventory.memory_free = all - less;
    const Result<Plan> other = make_plan(deep(), inventory, options);
    EXPECT_EQ(other.ok(), less == 0);
    if (other) continue;
    EXPECT_NE(other.error().message.find("of which the others need "), std::string::npos)
        << other.error().message;
  }
}

// What a machine has need not be known.
TEST(ProgramPlanner, WhatIsNotKnownRefusesNothing) {
  Inventory inventory = workers(1, false);
  inventory.memory_total = inventory.memory_free = 0;
  const Result<Plan> plan = make_plan(deep(), inventory, {.context = 256, .prefill_chunk = 16});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_FALSE(plan->program->budget_bytes);
}

}  // namespace
}  // namespace tessera
