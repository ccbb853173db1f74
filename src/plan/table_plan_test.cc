// Where a GPU's embedding table lies: with its other weights, or in pinned memory of the host.
#include <gtest/gtest.h>

#include <map>

#include "device/gpu/gpu_layout.h"
#include "plan/planner_rig.h"

namespace tessera {
namespace {

using Table = PlanOptions::Table;

// Of a vocabulary that weighs something.
const Model& wordy(const std::string& family) {
  static std::map<std::string, Model> models;
  if (!models.contains(family))
    models.emplace(family, synthetic({.family = family,
                                      .preset = "tiny",
                                      .overrides = {"block_count=4", "vocab_size=16384"}}));
  return models.at(family);
}

Inventory one_gpu(std::int64_t bytes) {
  Inventory inventory = machine(1);
  inventory.memory_total = inventory.memory_free = kPlenty;
  DeviceInventory& gpu = inventory.devices[0];
  gpu.name = "cuda:0";
  gpu.kind = DeviceKind::cuda;
  gpu.memory = 1;
  gpu.memory_total = gpu.memory_free = bytes;
  return inventory;
}

Result<Plan> plan_with(const Model& model, std::int64_t bytes, Table table = Table::automatic) {
  return make_plan(model, one_gpu(bytes), {.context = 256, .prefill_chunk = 16, .table = table});
}

TEST(TablePlan, IsWhereItIsAskedFor) {
  const Model& model = wordy("qwen35moe");
  ASSERT_FALSE(model.spec().tied_head);
  const Result<Plan> device = plan_with(model, kPlenty, Table::device),
                     host = plan_with(model, kPlenty, Table::host),
                     automatic = plan_with(model, kPlenty);
  ASSERT_TRUE(device && host && automatic);
  const ShardPlan &there = device->shards[0], &here = host->shards[0];
  EXPECT_FALSE(there.layout.table_on_host || automatic->shards[0].layout.table_on_host);
  EXPECT_EQ(there.table_bytes, 0);
  EXPECT_TRUE(here.layout.table_on_host);
  EXPECT_EQ(here.table_bytes, gpu_table_bytes(model, here.layout));
  EXPECT_GT(here.table_bytes, 0);
  EXPECT_EQ(there.weight_bytes - here.weight_bytes, here.table_bytes);
  EXPECT_EQ(here.process_bytes() - there.process_bytes(), here.table_bytes);
  EXPECT_EQ(here.total_bytes(), gpu_footprint(model, here.layout).total());
}

// It goes before any expert does, and a model without experts may fit by it.
TEST(TablePlan, LeavesFirst) {
  for (const char* family : {"qwen35moe", "qwen35"}) {
    const Model& model = wordy(family);
    ASSERT_FALSE(model.spec().tied_head);
    const Result<Plan> all = plan_with(model, kPlenty);
    ASSERT_TRUE(all);
    const std::int64_t bytes = all->shards[0].total_bytes();
    const Result<Plan> fits = plan_with(model, bytes), less = plan_with(model, bytes - 1);
    ASSERT_TRUE(fits) << fits.error().message;
    EXPECT_FALSE(fits->shards[0].layout.table_on_host);
    ASSERT_TRUE(less) << less.error().message;
    EXPECT_TRUE(less->shards[0].layout.table_on_host);
    EXPECT_EQ(less->shards[0].experts, all->shards[0].experts);
    EXPECT_EQ(less->context, all->context);
    EXPECT_NE(plan_table(*less).find("The embedding table of cuda:0 lies in pinned memory"),
              std::string::npos);
    const Result<Plan> kept = plan_with(model, bytes - 1, Table::device);
    EXPECT_TRUE(!kept || !kept->shards[0].layout.table_on_host);
  }
}

TEST(TablePlan, StaysWhereNothingIsGained) {
  // The head is read whole.
  const Model& tied = wordy("qwen3");
  ASSERT_TRUE(tied.spec().tied_head);
  const Result<Plan> head = plan_with(tied, kPlenty, Table::host);
  ASSERT_TRUE(head);
  EXPECT_FALSE(head->shards[0].layout.table_on_host);
  // A GPU without memory of its own, and devices elsewhere.
  const Model& model = wordy("qwen35moe");
  const PlanOptions options{.context = 256, .prefill_chunk = 16, .table = Table::host};
  Inventory unified = one_gpu(kPlenty);
  unified.devices[0].memory = kHostMemory;
  const Result<Plan> same = make_plan(model, unified, options);
  ASSERT_TRUE(same) << same.error().message;
  EXPECT_FALSE(same->shards[0].layout.table_on_host);
  const Result<Plan> cpu = make_plan(model, machine(1), options);
  ASSERT_TRUE(cpu) << cpu.error().message;
  EXPECT_FALSE(cpu->shards[0].layout.table_on_host);
}

}  // namespace
}  // namespace tessera
