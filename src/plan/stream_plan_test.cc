// Experts of the host that cross to a GPU for steps of many rows: planned where the host's memory
// has room for them twice, packed and in the file's pages, and the GPU's for the places.
#include <gtest/gtest.h>

#include "device/gpu/gpu_layout.h"
#include "plan/planner_rig.h"

namespace tessera {
namespace {

void make_numbered_gpu(DeviceInventory& device, int number, std::int64_t bytes) {
  device.name = "cuda:" + std::to_string(number);
  device.kind = DeviceKind::cuda;
  device.number = number;
  device.threads = 3;
  device.memory = number + 1;
  device.memory_total = device.memory_free = bytes;
}

Inventory gpus(int count, std::int64_t host_free = kPlenty, std::int64_t bytes = kPlenty) {
  Inventory inventory = machine(count, host_free);
  inventory.memory_total = kPlenty;
  inventory.memory_free = host_free;
  for (int i = 0; i < count; ++i)
    make_numbered_gpu(inventory.devices[static_cast<std::size_t>(i)], i, bytes);
  return inventory;
}

PlanOptions resident(double percent, bool stream = true) {
  return {.context = 256, .prefill_chunk = 16, .expert_resident = percent, .expert_stream = stream};
}

Plan plan_of(const Inventory& inventory, const PlanOptions& options) {
  const Result<Plan> plan = make_plan(expert_heavy(), inventory, options);
  EXPECT_TRUE(plan) << plan.error().message;
  return plan ? *plan : Plan{};
}

TEST(StreamPlan, CountsBothEnds) {
  const Model& model = expert_heavy();
  for (const double percent : {0.0, 50.0}) {
    const Plan plan = plan_of(gpus(1), resident(percent)),
               off = plan_of(gpus(1), resident(percent, false));
    const ShardPlan &shard = plan.shards[0], &without = off.shards[0];
    EXPECT_EQ(shard.experts, without.experts);
    EXPECT_GT(shard.streamed_bytes, 0);
    EXPECT_EQ(shard.streamed_bytes, gpu_streamed_bytes(model, shard.layout));
    EXPECT_EQ(shard.process_bytes(), without.process_bytes() + shard.streamed_bytes);
    EXPECT_EQ(plan.total_bytes(), off.total_bytes() + shard.streamed_bytes);
    EXPECT_EQ(shard.total_bytes(), gpu_footprint(model, shard.layout).total());
    const gpu::WeightLayout layout =
        gpu::weight_layout(model.tensors(), model.spec(), shard.layout);
    EXPECT_GE(shard.total_bytes() - without.total_bytes(),
              layout.stream.groups * layout.stream.group_bytes);
    // Half of the experts away are half the bytes.
    const ShardPlan none = plan_of(gpus(1), resident(0.0)).shards[0];
    EXPECT_EQ(shard.streamed_bytes * none.experts_host, none.streamed_bytes * shard.experts_host);
  }
  EXPECT_EQ(plan_of(gpus(1), resident(100.0)).shards[0].streamed_bytes, 0);
  EXPECT_EQ(plan_of(gpus(1), resident(50.0, false)).shards[0].streamed_bytes, 0);
}

TEST(StreamPlan, WantsRoomForTheFilesPagesToo) {
  const Plan plan = plan_of(gpus(1), resident(50.0));
  const std::int64_t needs = plan.total_bytes() + plan.shards[0].mapped_bytes;
  EXPECT_GT(plan_of(gpus(1, needs), resident(50.0)).shards[0].streamed_bytes, 0);
  const Plan less = plan_of(gpus(1, needs - 1), resident(50.0));
  EXPECT_EQ(less.shards[0].streamed_bytes, 0);
  EXPECT_EQ(less.shards[0].total_bytes(),
            plan_of(gpus(1), resident(50.0, false)).shards[0].total_bytes());
}

// What the places take is not there for residents, and the plan stays within the budget.
TEST(StreamPlan, StaysWithinTheGpu) {
  PlanOptions options = resident(0.0);
  options.expert_resident.reset();
  const std::int64_t all = plan_of(gpus(1), options).shards[0].total_bytes();
  for (const double share : {0.9, 0.7, 0.5, 0.3}) {
    const auto bytes = static_cast<std::int64_t>(share * static_cast<double>(all));
    const Result<Plan> plan = make_plan(expert_heavy(), gpus(1, kPlenty, bytes), options);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_GE(plan->shards[0].free_bytes(), 0);
    EXPECT_GT(plan->shards[0].experts_host, 0);
    EXPECT_GT(plan->shards[0].streamed_bytes, 0);
  }
}

TEST(StreamPlan, IsForGpusWithoutACpuDeviceBesideThem) {
  const Plan two = plan_of(gpus(2), resident(50.0));
  EXPECT_GT(two.shards[0].streamed_bytes, 0);
  EXPECT_GT(two.shards[1].streamed_bytes, 0);
  EXPECT_EQ(plan_of(machine(1), resident(50.0)).shards[0].streamed_bytes, 0);
  Inventory both = machine(2);
  make_numbered_gpu(both.devices[0], 0, kPlenty);
  for (const ShardPlan& shard : plan_of(both, resident(50.0)).shards)
    EXPECT_EQ(shard.streamed_bytes, 0);
}

}  // namespace
}  // namespace tessera
