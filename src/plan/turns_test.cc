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
  // Each may use what the other leaves, of a budget and of what is free.
  for (const std::size_t i : {0, 1}) {
    const ShardPlan &first = plan->shards[i], &second = plan->shards[i + 2];
    const std::int64_t all = i == 0 ? 40 * kGiB : 100 * kGiB;
    EXPECT_EQ(first.bounded, i == 0);
    EXPECT_EQ(first.free_bytes(), second.free_bytes());
    EXPECT_EQ(first.free_bytes(), all - first.total_bytes() - second.total_bytes());
  }
}

TEST(Turns, AreOneRowOfTheTableForEachDevice) {
  const Result<Plan> plan = make_plan(deep(), turning_gpus(2), {.context = 256, .turns = 2});
  ASSERT_TRUE(plan) << plan.error().message;
  const std::string table = plan_table(*plan);
  EXPECT_NE(table.find("0-2 +embedding, 6-8"), std::string::npos) << table;
  EXPECT_NE(table.find("3-5, 9-11 +head"), std::string::npos) << table;
  EXPECT_NE(table.find("Layers go round the GPUs in 2 turns"), std::string::npos) << table;
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
  EXPECT_NE(
      refusal(deep(), turning_gpus(2), 7).find("12 parts, which give 2 GPUs at most 6 ranges each"),
      std::string::npos);
  Inventory inventory = turning_gpus(2);
  inventory.devices[1].remote = true;
  EXPECT_NE(refusal(deep(), inventory, 2).find("cuda:1 takes no turns"), std::string::npos);
}

// A budget that is enough for both of a GPU's ranges, however unlike they are, and one that is not.
TEST(Turns, FitABudgetByNeed) {
  const auto with = [](std::int64_t bytes, int turns) {
    Inventory inventory = turning_gpus(2);
    inventory.devices[0].budget = bytes;
    return make_plan(deep(), inventory, {.context = 256, .prefill_chunk = 16, .turns = turns});
  };
  const Result<Plan> plenty = with(40 * kGiB, 2);
  ASSERT_TRUE(plenty) << plenty.error().message;
  const std::int64_t enough = plenty->shards[0].total_bytes() + plenty->shards[2].total_bytes();
  const Result<Plan> tight = with(enough, 2);
  ASSERT_TRUE(tight) << tight.error().message;
  EXPECT_EQ(tight->shards[0].free_bytes(), 0);
  EXPECT_EQ(ends(*tight), ends(*plenty));
  // One range each takes less: it has one scratch memory.
  const Result<Plan> once = with(enough, 1);
  ASSERT_TRUE(once);
  Inventory inventory = turning_gpus(2);
  for (std::size_t i = 0; i < 2; ++i) inventory.devices[i].budget = once->shards[i].total_bytes();
  const PlanOptions options{.context = 256, .prefill_chunk = 16, .turns = 2};
  const Result<Plan> none = make_plan(deep(), inventory, options);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("--target-turns 1 fits"), std::string::npos)
      << none.error().message;
}

// Cards of which one has room for a third of the layers only.
TEST(Turns, FitCardsOfUnlikeRoom) {
  const auto with = [](std::int64_t first, int turns) {
    Inventory inventory = turning_gpus(2);
    inventory.devices[0].budget = first;
    return make_plan(deep(), inventory, {.context = 256, .prefill_chunk = 16, .turns = turns});
  };
  const Result<Plan> plenty = with(40 * kGiB, 2);
  ASSERT_TRUE(plenty);
  const ShardPlan &one = plenty->shards[0], &other = plenty->shards[2];
  const std::int64_t layer = other.weight_bytes / 3 + other.kv_bytes / 3;
  const Result<Plan> tight = with(one.total_bytes() + other.total_bytes() - 3 * layer, 2);
  ASSERT_TRUE(tight) << tight.error().message;
  EXPECT_GE(tight->shards[0].free_bytes(), 0);
  EXPECT_LT(tight->shards[0].layout.end_layer + tight->shards[2].layout.end_layer -
                tight->shards[2].layout.first_layer,
            6);
}

// A card that is slower with prompts than with tokens has as few layers as with one range.
TEST(Turns, WeighPromptsByDevices) {
  Inventory inventory = turning_gpus(2);
  LayerTimes slow, fast;
  const int layers = deep().spec().n_layer();
  for (int l = 0; l < layers; ++l) {
    slow.layers.push_back({.prompt_row_s = 4e-6, .token_s = 1e-5});
    fast.layers.push_back({.prompt_row_s = 1e-6, .token_s = 2e-5});
  }
  inventory.devices[0].times = slow;
  inventory.devices[1].times = fast;
  const auto layers_of_first = [&](int turns) {
    const Result<Plan> plan = make_plan(deep(), inventory, {.context = 256, .turns = turns});
    EXPECT_TRUE(plan) << plan.error().message;
    int n = 0;
    for (std::size_t i = 0; plan && i < plan->shards.size(); i += 2)
      n += plan->shards[i].layout.end_layer - plan->shards[i].layout.first_layer;
    return n;
  };
  EXPECT_EQ(layers_of_first(2), layers_of_first(1));
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
