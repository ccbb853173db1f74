#include "plan/gpu_inventory.h"

#include <gtest/gtest.h>

#include "plan/planner_rig.h"

namespace tessera {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kDriver = kGiB / 4;  // what is kept free for it
const DeviceName kGpu{.kind = DeviceKind::cuda, .team = 0};

DeviceInventory host(std::int64_t free) {
  return {.name = "cpu", .threads = 2, .memory_total = 16 * kGiB, .memory_free = free};
}

GpuInfo reported(std::int64_t free, bool unified) {
  GpuInfo info{};
  info.memory_total = 8 * kGiB;
  info.memory_free = free;
  info.bytes_per_second = 100'000'000'000;
  info.unified = unified;
  return info;
}

TEST(GpuInventory, MemoryOfItsOwnIsNotTheMachines) {
  const DeviceInventory gpu = gpu_inventory(kGpu, reported(5 * kGiB, false), host(kGiB), 4);
  EXPECT_NE(gpu.memory, kHostMemory);
  EXPECT_EQ(gpu.memory_total, 8 * kGiB);
  EXPECT_EQ(gpu.memory_free, 5 * kGiB - kDriver);
  EXPECT_EQ(gpu.threads, 4);
  EXPECT_EQ(allowed_budget(gpu, 7 * kGiB), 7 * kGiB) << "a person may know better";
  EXPECT_EQ(gpu_inventory(kGpu, reported(9 * kGiB, false), host(kGiB), 4).memory_free,
            8 * kGiB - kDriver);
  for (const std::int64_t free : {std::int64_t{-1}, kDriver - 1})
    EXPECT_EQ(gpu_inventory(kGpu, reported(free, false), host(kGiB), 4).memory_free, 0);
}

TEST(GpuInventory, UnifiedMemoryIsTheMachines) {
  const DeviceInventory gpu = gpu_inventory(kGpu, reported(5 * kGiB, true), host(3 * kGiB), 4);
  EXPECT_EQ(gpu.memory, kHostMemory);
  EXPECT_EQ(gpu.memory_total, 16 * kGiB);
  EXPECT_EQ(gpu.memory_free, 3 * kGiB);
  EXPECT_EQ(allowed_budget(gpu, 2 * kGiB), 2 * kGiB);
  EXPECT_EQ(allowed_budget(gpu, 9 * kGiB), 3 * kGiB);
  // The driver may know of less, and either of more than there is.
  EXPECT_EQ(gpu_inventory(kGpu, reported(kGiB, true), host(3 * kGiB), 4).memory_free,
            kGiB - kDriver);
  EXPECT_EQ(gpu_inventory(kGpu, reported(99 * kGiB, true), host(99 * kGiB), 4).memory_free,
            8 * kGiB - kDriver);
  EXPECT_EQ(gpu_inventory(kGpu, reported(kGiB, true), host(-5), 4).memory_free, 0);
}

// Both are one memory, of which each byte is given once.
TEST(GpuInventory, AUnifiedGpuSharesWithTheProcessor) {
  const Model& model = deep();
  DeviceInventory cpu = host(kGiB);
  Inventory inventory;
  inventory.devices = {cpu, gpu_inventory(kGpu, reported(8 * kGiB, true), cpu, 2)};
  inventory.devices[1].name = "cuda:0";
  const PlanOptions options{.context = 256, .prefill_chunk = 16, .layer_weights = {1.0, 1.0}};
  const Result<Plan> plan = make_plan(model, inventory, options);
  ASSERT_TRUE(plan) << plan.error().message;
  const ShardPlan &here = plan->shards[0], &there = plan->shards[1];
  EXPECT_EQ(here.budget_bytes, kGiB - there.total_bytes());
  EXPECT_EQ(there.budget_bytes, kGiB - here.total_bytes() - here.host_bytes);
}

TEST(GpuInventory, AGpuComputesInTheFilesFormats) {
  Inventory inventory;
  inventory.devices = {gpu_inventory(kGpu, reported(8 * kGiB, false), host(kGiB), 2)};
  PlanOptions options{.context = 256, .prefill_chunk = 16};
  EXPECT_TRUE(make_plan(deep(), inventory, options));
  options.f32_weights = true;
  const Result<Plan> plan = make_plan(deep(), inventory, options);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message,
            "--compute f32: GPUs compute in the file's own formats; use them without it");
}

}  // namespace
}  // namespace tessera
