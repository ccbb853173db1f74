// Where a GPU's embedding table lies: with its other weights, in pinned memory of the host, or part
// of it here and part of it there.
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

// All of it, with the other weights.
std::int64_t table_bytes(const Model& model) {
  ShardLayout shard{.end_layer = model.spec().n_layer(), .table_device_rows = 0};
  return gpu_table_bytes(model, shard);
}

// Not one tile of rows more would.
void expect_as_many_rows_as_fit(const Model& model, const ShardPlan& shard, std::int64_t budget) {
  ASSERT_TRUE(shard.layout.table_device_rows);
  const int rows = *shard.layout.table_device_rows;
  EXPECT_EQ(rows % gpu::kTileRows, 0);
  EXPECT_LT(rows, model.spec().n_vocab);
  EXPECT_LE(shard.total_bytes(), budget);
  EXPECT_EQ(shard.total_bytes(), gpu_footprint(model, shard.layout).total());
  EXPECT_EQ(shard.table_bytes, gpu_table_bytes(model, shard.layout));
  // Each part's planes begin at a multiple.
  const std::int64_t device = gpu::weight_layout(model.tensors(), model.spec(), shard.layout).bytes;
  ShardLayout more = shard.layout;
  more.table_device_rows = 0;
  const std::int64_t none = gpu::weight_layout(model.tensors(), model.spec(), more).bytes;
  EXPECT_GE(device - none + shard.table_bytes, table_bytes(model));
  EXPECT_LT(device - none + shard.table_bytes, table_bytes(model) + 4 * gpu::kPlaneAlignment);
  more.table_device_rows = rows + gpu::kTileRows;
  EXPECT_GT(gpu_footprint(model, more).total(), budget);
}

TEST(TablePlan, IsWhereItIsAskedFor) {
  const Model& model = wordy("qwen35moe");
  ASSERT_FALSE(model.spec().tied_head);
  const Result<Plan> device = plan_with(model, kPlenty, Table::device),
                     host = plan_with(model, kPlenty, Table::host),
                     automatic = plan_with(model, kPlenty);
  ASSERT_TRUE(device && host && automatic);
  const ShardPlan &there = device->shards[0], &here = host->shards[0];
  EXPECT_FALSE(there.layout.table_device_rows || automatic->shards[0].layout.table_device_rows);
  EXPECT_EQ(there.table_bytes, 0);
  EXPECT_EQ(here.layout.table_device_rows, 0);
  EXPECT_EQ(here.table_bytes, gpu_table_bytes(model, here.layout));
  EXPECT_GT(here.table_bytes, 0);
  EXPECT_EQ(there.weight_bytes - here.weight_bytes, here.table_bytes);
  EXPECT_EQ(here.process_bytes() - there.process_bytes(), here.table_bytes);
  EXPECT_EQ(here.total_bytes(), gpu_footprint(model, here.layout).total());
}

// It goes before any expert does, and a model without experts may fit by it: as many rows as must.
TEST(TablePlan, LeavesFirst) {
  for (const char* family : {"qwen35moe", "qwen35"}) {
    const Model& model = wordy(family);
    ASSERT_FALSE(model.spec().tied_head);
    const Result<Plan> all = plan_with(model, kPlenty);
    ASSERT_TRUE(all);
    const std::int64_t bytes = all->shards[0].total_bytes(), table = table_bytes(model);
    const Result<Plan> fits = plan_with(model, bytes);
    ASSERT_TRUE(fits) << fits.error().message;
    EXPECT_FALSE(fits->shards[0].layout.table_device_rows);
    for (const std::int64_t lacks : {std::int64_t{1}, table / 2, table - 1, table}) {
      const Result<Plan> less = plan_with(model, bytes - lacks);
      ASSERT_TRUE(less) << less.error().message;
      expect_as_many_rows_as_fit(model, less->shards[0], bytes - lacks);
      EXPECT_EQ(less->shards[0].experts, all->shards[0].experts);
      EXPECT_EQ(less->context, all->context);
      const Result<Plan> kept = plan_with(model, bytes - lacks, Table::device);
      EXPECT_TRUE(!kept || !kept->shards[0].layout.table_device_rows);
    }
  }
}

// Where the whole table is not enough.
TEST(TablePlan, LeavesBeforeExperts) {
  const Model& model = wordy("qwen35moe");
  const Result<Plan> all = plan_with(model, kPlenty);
  ASSERT_TRUE(all);
  const std::int64_t bytes = all->shards[0].total_bytes() - table_bytes(model) - 1;
  const Result<Plan> less = plan_with(model, bytes);
  ASSERT_TRUE(less) << less.error().message;
  EXPECT_EQ(less->shards[0].layout.table_device_rows, 0);
  EXPECT_LT(less->shards[0].experts, all->shards[0].experts);
  EXPECT_LE(less->shards[0].total_bytes(), bytes);
}

TEST(TablePlan, SaysWhereItIs) {
  const Model& model = wordy("qwen35");
  const Result<Plan> all = plan_with(model, kPlenty), host = plan_with(model, kPlenty, Table::host);
  ASSERT_TRUE(all && host);
  const Result<Plan> split =
      plan_with(model, all->shards[0].total_bytes() - table_bytes(model) / 2);
  ASSERT_TRUE(split) << split.error().message;
  EXPECT_EQ(plan_table(*all).find("The embedding table"), std::string::npos);
  EXPECT_NE(plan_table(*host).find("The embedding table of cuda:0 lies in pinned memory"),
            std::string::npos);
  const ShardPlan& shard = split->shards[0];
  const std::string line = fmt::format(
      "Rows 0 to {} of the embedding table are on cuda:0, the others in pinned memory of this "
      "process, {}:",
      *shard.layout.table_device_rows - 1, format_bytes(shard.table_bytes));
  EXPECT_NE(plan_table(*split).find(line), std::string::npos) << plan_table(*split);
}

// No more rows leave than the host has room for; experts do instead.
TEST(TablePlan, LeavesAsTheHostHasRoom) {
  const Model& model = wordy("qwen35moe");
  const Result<Plan> all = plan_with(model, kPlenty);
  ASSERT_TRUE(all);
  Inventory inventory = one_gpu(all->shards[0].total_bytes() - table_bytes(model) - 1);
  const PlanOptions options{.context = 256, .prefill_chunk = 16, .expert_stream = false};
  const Result<Plan> roomy = make_plan(model, inventory, options);
  ASSERT_TRUE(roomy && roomy->program);
  ASSERT_EQ(roomy->shards[0].layout.table_device_rows, 0);
  inventory.memory_total = inventory.memory_free =
      roomy->program->total_bytes() - table_bytes(model) / 2;
  const Result<Plan> half = make_plan(model, inventory, options);
  ASSERT_TRUE(half) << half.error().message;
  EXPECT_GT(half->shards[0].layout.table_device_rows.value_or(0), 0);
  EXPECT_LT(half->shards[0].experts, roomy->shards[0].experts);
  inventory.memory_free -= table_bytes(model) / 2;
  const Result<Plan> none = make_plan(model, inventory, options);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_FALSE(none->shards[0].layout.table_device_rows);
  EXPECT_LT(none->shards[0].experts, half->shards[0].experts);
}

// To the byte.
TEST(TablePlan, NeedsRoomOfTheHost) {
  const Model& model = wordy("qwen35");
  const Result<Plan> all = plan_with(model, kPlenty);
  ASSERT_TRUE(all);
  const std::int64_t lacks = table_bytes(model) / 2;
  Inventory inventory = one_gpu(all->shards[0].total_bytes() - lacks);
  const PlanOptions options{.context = 256, .prefill_chunk = 16};
  const Result<Plan> split = make_plan(model, inventory, options);
  ASSERT_TRUE(split && split->program) << split.error().message;
  inventory.memory_total = inventory.memory_free = split->program->total_bytes();
  const Result<Plan> just = make_plan(model, inventory, options);
  ASSERT_TRUE(just) << just.error().message;
  EXPECT_EQ(just->shards[0].layout.table_device_rows, split->shards[0].layout.table_device_rows);
  --inventory.memory_free;
  EXPECT_FALSE(make_plan(model, inventory, options));
}

TEST(TablePlan, StaysWhereNothingIsGained) {
  // The head is read whole.
  const Model& tied = wordy("qwen3");
  ASSERT_TRUE(tied.spec().tied_head);
  const Result<Plan> head = plan_with(tied, kPlenty, Table::host);
  ASSERT_TRUE(head);
  EXPECT_FALSE(head->shards[0].layout.table_device_rows);
  // A GPU without memory of its own, and devices elsewhere.
  const Model& model = wordy("qwen35moe");
  const PlanOptions options{.context = 256, .prefill_chunk = 16, .table = Table::host};
  Inventory unified = one_gpu(kPlenty);
  unified.devices[0].memory = kHostMemory;
  const Result<Plan> same = make_plan(model, unified, options);
  ASSERT_TRUE(same) << same.error().message;
  EXPECT_FALSE(same->shards[0].layout.table_device_rows);
  const Result<Plan> cpu = make_plan(model, machine(1), options);
  ASSERT_TRUE(cpu) << cpu.error().message;
  EXPECT_FALSE(cpu->shards[0].layout.table_device_rows);
}

}  // namespace
}  // namespace tessera
