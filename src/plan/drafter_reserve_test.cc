#include "plan/drafter_reserve.h"

#include "plan/planner_rig.h"

namespace tessera {
namespace {

// Small numbers of which no product is another's.
const DrafterSpec kSpec{.name = "",
                        .n_layer = 2,
                        .n_embd = 32,
                        .n_ff = 48,
                        .n_head = 4,
                        .n_kv_head = 2,
                        .key_dim = 16,
                        .value_dim = 8,
                        .block_rows = 5,
                        .captures = 3,
                        .weight_bytes = 1000};

TEST(DrafterReserve, CountsEveryByte) {
  const DrafterReserve reserve =
      drafter_reserve(kSpec, {.n_vocab = 100, .context = 256, .parallel = 3, .step_rows = 64});
  EXPECT_EQ(reserve.rows, 256 + 5);
  EXPECT_EQ(reserve.weights, 1000);
  EXPECT_EQ(reserve.kv, 3 * 261 * 2 * 2 * (16 + 8) * 2);
  EXPECT_EQ(reserve.features, 3 * 261 * 3 * 32 * 2);
  const std::int64_t block_row = 32 + 32 + 4 * 16 + 2 * (16 + 8) + 4 * 8 + 48 + 48 + 100;
  const std::int64_t step_row = 3 * 32 + 32 + 2 * (16 + 8);
  EXPECT_EQ(reserve.scratch, 4 * (3 * 5 * block_row + 64 * step_row));
  EXPECT_EQ(reserve.total(), reserve.weights + reserve.kv + reserve.features + reserve.scratch);
}

TEST(DrafterReserve, KeepsNoMoreRowsThanADrafterSees) {
  const DrafterUse use{.n_vocab = 100, .context = 4096};
  DrafterUse longer = use;
  longer.context = 131072;
  EXPECT_EQ(drafter_reserve(kSpec, longer).total(), drafter_reserve(kSpec, use).total());
}

PlanOptions with_drafter() {
  DrafterSpec drafter = kSpec;
  drafter.weight_bytes = 5 << 20;
  return {.context = 256, .drafter = drafter};
}

TEST(DrafterReserve, LiesWithTheHead) {
  const Result<Plan> plain = make_plan(deep(), machine(3), {.context = 256});
  const Result<Plan> plan = make_plan(deep(), machine(3), with_drafter());
  ASSERT_TRUE(plain && plan);
  ASSERT_TRUE(plan->drafter);
  const std::int64_t bytes = plan->drafter->reserve.total();
  EXPECT_GT(bytes, 5 << 20);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t here = i == 2 ? bytes : 0;
    EXPECT_EQ(plan->shards[i].drafter_bytes, here);
    EXPECT_EQ(plan->shards[i].total_bytes(), plain->shards[i].total_bytes() + here);
    EXPECT_EQ(plan_json(*plan)["shards"][i]["drafter_bytes"], here);
  }
  EXPECT_EQ(plan->total_bytes(), plain->total_bytes() + bytes);
  EXPECT_EQ(plan_json(*plan)["drafter"]["total_bytes"], bytes);
  EXPECT_NE(plan_table(*plan).find("cpu:2 keeps"), std::string::npos);
  EXPECT_EQ(plan_table(*plain).find("drafter"), std::string::npos);
}

// A budget that holds the model alone lacks what the drafter takes; experts give way to it.
TEST(DrafterReserve, CountsAgainstTheBudget) {
  const Result<Plan> roomy = make_plan(deep(), machine(1), with_drafter());
  ASSERT_TRUE(roomy) << roomy.error().message;
  const ShardPlan& all = roomy->shards.front();
  Inventory inventory = machine(1);
  inventory.devices.front().has_file = false;  // nothing may leave
  inventory.devices.front().budget = all.total_bytes() + all.host_bytes;
  EXPECT_TRUE(make_plan(deep(), inventory, with_drafter()));
  *inventory.devices.front().budget -= 1;
  EXPECT_FALSE(make_plan(deep(), inventory, with_drafter()));
  EXPECT_TRUE(make_plan(deep(), inventory, {.context = 256}));

  Inventory tight = machine(1);
  const Result<Plan> experts = make_plan(expert_heavy(), tight, {.context = 256});
  ASSERT_TRUE(experts) << experts.error().message;
  tight.devices.front().budget =
      experts->shards.front().total_bytes() + experts->shards.front().host_bytes;
  const Result<Plan> beside = make_plan(expert_heavy(), tight, with_drafter());
  ASSERT_TRUE(beside) << beside.error().message;
  EXPECT_LT(beside->shards.front().experts, experts->shards.front().experts);
  EXPECT_GE(beside->shards.front().free_bytes(), 0);
}

}  // namespace
}  // namespace tessera
