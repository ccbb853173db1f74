// Ranges of layers in turns.
#include "plan/turns.h"

#include <gtest/gtest.h>

#include "plan/planner_rig.h"
#include "plan/prediction.h"

namespace tessera {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// That hand rows to each other.
Inventory turning_gpus(int count, std::int64_t free_bytes = 100 * kGiB) {
  Inventory inventory;
  for (int i = 0; i < count; ++i)
    inventory.devices.push_back({.name = fmt::format("cuda:{}", i),
                                 .kind = DeviceKind::cuda,
                                 .number = i,
                                 .threads = 1,
                                 .bytes_per_s = 4e12,
                                 .hands_rows_to = 3,
                                 .runs = true,
                                 .memory = 7 + i,
                                 .memory_total = free_bytes,
                                 .memory_free = free_bytes});
  return inventory;
}

std::string refusal(const Model& model, const Inventory& inventory, int turns) {
  const Result<Plan> plan = make_plan(model, inventory, {.context = 256, .turns = turns});
  return plan ? std::string() : plan.error().message;
}

TEST(Turns, GoRoundTheDevices) {
  const Result<Plan> plan = make_plan(deep(), turning_gpus(2), {.context = 256, .turns = 3});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->turns, 3);
  EXPECT_EQ(plan->devices(), 2u);
  EXPECT_EQ(ends(*plan), (std::vector<int>{2, 4, 6, 8, 10, 12}));
  for (std::size_t i = 0; i < 6; ++i) {
    const ShardPlan& shard = plan->shards[i];
    EXPECT_EQ(shard.device, fmt::format("cuda:{}", i % 2));
    EXPECT_EQ(shard.number, static_cast<int>(i % 2));
    EXPECT_EQ(shard.layout.kept_pieces, i < 5 ? ring_pieces(6) : 0);
    EXPECT_EQ(shard.layout.rows_abreast, 2);
  }
}

TEST(Turns, ShareADevicesWeightAndBudget) {
  Inventory inventory = turning_gpus(2);
  inventory.devices[0].budget = 40 * kGiB;
  const Result<Plan> plan =
      make_plan(deep(), inventory, {.context = 256, .layer_weights = {2.0, 1.0}, .turns = 2});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(ends(*plan), (std::vector<int>{4, 6, 10, 12}));
  EXPECT_EQ(plan->shards[0].budget_bytes, 20 * kGiB);
  EXPECT_EQ(plan->shards[2].budget_bytes, 20 * kGiB);
  // Without one each may use what the other leaves.
  EXPECT_EQ(plan->shards[1].free_bytes(), plan->shards[3].free_bytes());
  EXPECT_EQ(plan->shards[1].free_bytes(),
            100 * kGiB - plan->shards[1].total_bytes() - plan->shards[3].total_bytes());
}

TEST(Turns, AreOneRowOfTheTableForEachDevice) {
  const Result<Plan> plan = make_plan(deep(), turning_gpus(2), {.context = 256, .turns = 2});
  ASSERT_TRUE(plan) << plan.error().message;
  const std::string table = plan_table(*plan);
  EXPECT_NE(table.find("0-2 +embedding, 6-8"), std::string::npos) << table;
  EXPECT_NE(table.find("3-5, 9-11 +head"), std::string::npos) << table;
}

TEST(Turns, ShortenTheWaitOfAPrompt) {
  const auto predicted = [](int turns) {
    Plan plan = *make_plan(deep(), turning_gpus(2), {.context = 256, .turns = turns});
    return *predict(deep(), plan, {});
  };
  const Prediction one = predicted(1), three = predicted(3);
  EXPECT_NEAR(three.prefill.tokens_per_s, one.prefill.tokens_per_s,
              1e-6 * one.prefill.tokens_per_s);
  EXPECT_NEAR(3.0 * three.fill_row_s, one.fill_row_s, 1e-6 * one.fill_row_s);
}

TEST(Turns, AreOfGpusOfThisProcess) {
  EXPECT_NE(refusal(deep(), machine(2), 2).find("--target-turns 2: cpu:0 takes no turns"),
            std::string::npos);
  EXPECT_NE(refusal(deep(), turning_gpus(1), 2).find("name several with --target-devices"),
            std::string::npos);
  EXPECT_NE(refusal(deep(), turning_gpus(2), 7).find("12 layers give 2 GPUs at most 6 ranges each"),
            std::string::npos);
  Inventory inventory = turning_gpus(2);
  inventory.devices[1].remote = true;
  EXPECT_NE(refusal(deep(), inventory, 2).find("cuda:1 takes no turns"), std::string::npos);
}

// Where nobody says how many: as many as are free.
TEST(Turns, AreTakenWhereATokenPaysNothing) {
  const PlanOptions any{.context = 256, .turns = 0};
  const Model& model = full_preset();
  Inventory inventory = turning_gpus(2, 2000 * kGiB);
  const auto turns = [&](const Model& of, const PlanOptions& options) {
    const Result<Plan> plan = make_plan(of, inventory, options);
    EXPECT_TRUE(plan) << plan.error().message;
    return plan ? plan->turns : 0;
  };
  EXPECT_EQ(turns(deep(), any), 1) << "a token of it takes next to nothing";
  EXPECT_EQ(turns(model, any), 5);
  PlanOptions wide = any;
  wide.kv_type = KvType::q8_0;
  EXPECT_EQ(turns(model, wide), 1) << "layers go one by one";
  inventory.devices[1].hands_rows_to = 2;
  EXPECT_EQ(turns(model, any), 1) << "the last does not reach the first";
}

}  // namespace
}  // namespace tessera
