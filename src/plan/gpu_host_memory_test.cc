// What GPUs' shards take of the memory of their processes is charged: to a CPU device of this
// process or, without one and for workers here, to what the machine has free.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "device/gpu/gpu_layout.h"
#include "experts/dispatcher.h"
#include "experts/host_executor.h"
#include "experts/prefault.h"
#include "plan/footprint.h"
#include "plan/planner_rig.h"

namespace tessera {
namespace {

void make_gpu(DeviceInventory& device, int memory, std::int64_t bytes = kPlenty) {
  device.kind = DeviceKind::cuda;
  device.memory = memory;
  device.memory_total = device.memory_free = bytes;
}

// A GPU with the first layers; the others on a CPU device of this process, or on none.
Inventory gpu_machine(int devices, std::int64_t free_bytes = kPlenty) {
  Inventory inventory = machine(devices, free_bytes);
  inventory.memory_total = kPlenty;
  inventory.memory_free = free_bytes;
  inventory.devices[0].name = "cuda:0";
  inventory.devices[0].threads = 3;
  make_gpu(inventory.devices[0], 1);
  return inventory;
}

const PlanOptions kHalf{
    .context = 256, .prefill_chunk = 16, .expert_resident = 50.0, .expert_stream = false};

TEST(GpuHostMemory, IsWhatTheShardAllocates) {
  const Model& model = expert_heavy();
  const Result<Plan> plan = make_plan(model, gpu_machine(2), kHalf);
  ASSERT_TRUE(plan) << plan.error().message;
  const ShardPlan& gpu = plan->shards[0];
  const GpuStaging staging = gpu_staging(model.spec(), gpu.layout);
  EXPECT_EQ(staging.logits, 0);  // the head is elsewhere
  EXPECT_GT(staging.expert_rows, 0);
  EXPECT_EQ(gpu.staging_bytes, staging.total());
  EXPECT_EQ(staging.moves, 0);  // no expert comes while it serves
  ShardLayout with_places = gpu.layout;
  with_places.experts.back().spare = 1;
  EXPECT_GT(gpu_staging(model.spec(), with_places).total(), staging.total());
  EXPECT_EQ(gpu.handoff_bytes, handoff_bytes(model.spec(), gpu.layout));
  // Experts away are computed by threads of their own, with sums of their own.
  EXPECT_EQ(gpu.offload_bytes, host_executor_bytes(model,
                                                   {.first_layer = gpu.layout.first_layer,
                                                    .end_layer = gpu.layout.end_layer,
                                                    .max_rows = gpu.layout.max_rows,
                                                    .threads = gpu.threads},
                                                   /*team_threads=*/0) +
                                   Dispatcher::bytes(model.spec(), gpu.layout));
  // None of it is in the GPU's memory.
  EXPECT_EQ(gpu.total_bytes(), gpu_footprint(model, gpu.layout).total());
}

TEST(GpuHostMemory, ACpuDeviceHereIsChargedWithIt) {
  const Model& model = expert_heavy();
  for (const bool experts : {false, true}) {
    PlanOptions options = kHalf;
    if (!experts) options.expert_resident.reset();
    Inventory inventory = gpu_machine(2);
    const Result<Plan> plan = make_plan(model, inventory, options);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_FALSE(plan->program);
    const ShardPlan &gpu = plan->shards[0], &cpu = plan->shards[1];
    EXPECT_EQ(gpu.offload_bytes > 0, experts);
    EXPECT_EQ(cpu.host_bytes, plan->process_bytes + gpu.process_bytes());
    EXPECT_EQ(plan->total_bytes(), cpu.total_bytes() + cpu.host_bytes);
    EXPECT_EQ(cpu.free_bytes(), kPlenty - plan->total_bytes());
    // To the byte, with and without a budget.
    PlanOptions fixed = options;
    fixed.layer_weights = {1.0 * gpu.layout.end_layer,
                           1.0 * (cpu.layout.end_layer - cpu.layout.first_layer)};
    for (const bool budget : {false, true})
      for (const std::int64_t less : {0, 1}) {
        Inventory tight = gpu_machine(2, budget ? kPlenty : cpu.charged_bytes() - less);
        if (budget) tight.devices[1].budget = cpu.charged_bytes() - less;
        const Result<Plan> other = make_plan(model, tight, fixed);
        ASSERT_TRUE(other) << other.error().message;
        const ShardPlan& shard = other->shards[1];
        const bool left = shard.file_bytes > 0 || shard.experts < cpu.experts;
        EXPECT_EQ(left, less > 0) << experts << " " << budget;
      }
  }
}

TEST(GpuHostMemory, WithoutACpuDeviceTheMachineIsCharged) {
  const Model& model = expert_heavy();
  const Result<Plan> plan = make_plan(model, gpu_machine(1), kHalf);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_TRUE(plan->program);
  const ShardPlan& gpu = plan->shards[0];
  EXPECT_GT(gpu.offload_bytes, 0);
  EXPECT_EQ(plan->program->gpu_bytes, gpu.process_bytes());
  EXPECT_EQ(plan->total_bytes(), plan->process_bytes + gpu.process_bytes());
  EXPECT_EQ(plan->total_bytes(), plan->program->total_bytes());
  EXPECT_TRUE(make_plan(model, gpu_machine(1, plan->total_bytes()), kHalf));
  const Result<Plan> refused = make_plan(model, gpu_machine(1, plan->total_bytes() - 1), kHalf);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("this process lacks 1 B"), std::string::npos)
      << refused.error().message;
}

// The process of a worker here takes of this machine what its GPU does not hold.
TEST(GpuHostMemory, AWorkersProcessIsChargedToItsMachine) {
  const Model& model = expert_heavy();
  for (const bool here : {true, false}) {
    Inventory inventory = machine(2);
    DeviceInventory& worker = inventory.devices[1];
    worker.name = "worker:0";
    worker.remote = true;
    worker.here = here;
    make_gpu(worker, 2);
    worker.connection = [](const ShardLayout&) {
      return ConnectionBytes{.here = 1 << 20, .there = 2 << 20};
    };
    const Result<Plan> plan = make_plan(model, inventory, kHalf);
    ASSERT_TRUE(plan) << plan.error().message;
    const ShardPlan &cpu = plan->shards[0], &gpu = plan->shards[1];
    EXPECT_GT(gpu.offload_bytes, 0);
    EXPECT_GE(gpu.process_bytes(), 2 << 20);
    EXPECT_EQ(cpu.host_bytes, plan->process_bytes);  // another process's is not this one's
    const std::int64_t there = here ? gpu.process_bytes() + gpu.host_bytes : 0;
    EXPECT_EQ(cpu.free_bytes(), kPlenty - cpu.charged_bytes() - there) << here;
  }
}

// What a GPU's layers have locked a CPU device here is charged with, and makes room for.
TEST(GpuHostMemory, LockedExpertsAreChargedToo) {
  const Model& model = expert_heavy();
  PlanOptions options = kHalf;
  options.lock_experts = true;
  const Result<Plan> both = make_plan(model, gpu_machine(2), options);
  ASSERT_TRUE(both) << both.error().message;
  const ShardPlan &gpu = both->shards[0], &cpu = both->shards[1];
  EXPECT_EQ(gpu.locked_bytes, locked_bytes(model, gpu.layout));
  EXPECT_GT(gpu.locked_bytes, 0);
  EXPECT_EQ(cpu.host_bytes, both->process_bytes + gpu.buffer_bytes() + gpu.locked_bytes);
  const Result<Plan> alone = make_plan(model, gpu_machine(1), options);
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_FALSE(make_plan(model, gpu_machine(1, alone->total_bytes() - 1), options));
}

// A row's parts are what its total is of.
TEST(GpuHostMemory, ARowOfTheTableAddsUp) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  ShardPlan shard{.device = "cuda:0", .kind = DeviceKind::cuda, .threads = 1};
  shard.layout.end_layer = 4;
  shard.weight_bytes = 10 * kMiB;
  shard.kv_bytes = 20 * kMiB;
  shard.recurrent_bytes = 30 * kMiB;
  shard.scratch_bytes = 40 * kMiB;
  shard.handoff_bytes = 5 * kMiB;
  shard.staging_bytes = 2 * kMiB;
  shard.budget_bytes = 1000 * kMiB;
  for (const DeviceKind kind : {DeviceKind::cuda, DeviceKind::cpu}) {
    shard.kind = kind;
    const bool gpu = kind != DeviceKind::cpu;
    Plan plan;
    plan.shards = {shard};
    const std::string table = plan_table(plan);
    std::istringstream row(table.substr(table.find("cuda:0")));
    std::vector<std::string> words;
    for (std::string word; row >> word && word.find("One") == std::string::npos;)
      words.push_back(word);
    const auto has = [&](const std::string& cell) {
      return std::find(words.begin(), words.end(), cell) != words.end();
    };
    EXPECT_TRUE(has(gpu ? "40.0" : "47.0")) << table;
    EXPECT_TRUE(has(gpu ? "100" : "107")) << table;
    EXPECT_EQ(
        table.find("cuda:0 takes 7.0 MiB of its host's memory for buffers.") != std::string::npos,
        gpu)
        << table;
  }
}

}  // namespace
}  // namespace tessera
