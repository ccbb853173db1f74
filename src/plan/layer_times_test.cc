// What the times of layers must be like, which layers are alike, and what plans make of them.
#include "plan/layer_times.h"

#include <gtest/gtest.h>

#include <limits>

#include "plan/planner_rig.h"
#include "plan/prediction.h"

namespace tessera {
namespace {

LayerTimes even_times(int n_layer, double layer_s) {
  LayerTimes times{.head_s = layer_s};
  times.layers.assign(static_cast<std::size_t>(n_layer),
                      {.prompt_row_s = layer_s / 10, .token_s = layer_s});
  return times;
}

Inventory timed_devices(const std::vector<LayerTimes>& times) {
  Inventory inventory;
  for (const LayerTimes& of_device : times)
    inventory.devices.push_back({.name = fmt::format("cpu:{}", inventory.devices.size()),
                                 .threads = 1,
                                 .memory_total = kPlenty,
                                 .memory_free = kPlenty,
                                 .times = of_device});
  return inventory;
}

Plan planned(const Model& model, const Inventory& inventory, PlanOptions options = {}) {
  options.context = 256;
  options.prefill_chunk = 128;
  Result<Plan> plan = make_plan(model, inventory, options);
  EXPECT_TRUE(plan) << plan.error().message;
  return *std::move(plan);
}

TEST(LayerTimes, OnlyWhatAClockCanGiveIsUsed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(usable(even_times(4, 1e-3), 4));
  EXPECT_FALSE(usable(even_times(4, 1e-3), 5));
  EXPECT_FALSE(usable({}, 1));
  for (const double wrong : {0.0, -1.0, nan, 1e9, std::numeric_limits<double>::infinity()}) {
    LayerTimes times = even_times(4, 1e-3);
    times.layers[2].token_s = wrong;
    EXPECT_FALSE(usable(times, 4)) << wrong;
    times = even_times(4, 1e-3);
    times.layers[3].prompt_row_s = wrong;
    EXPECT_FALSE(usable(times, 4)) << wrong;
    times = even_times(4, 1e-3);
    times.call.token_s = times.head_s = wrong;
    EXPECT_EQ(usable(times, 4), wrong == 0.0) << wrong;
  }
}

TEST(LayerTimes, ASpanIsItsLayersACallAndTheHead) {
  LayerTimes times = even_times(4, 1.0);
  times.layers[1].token_s = 5.0;
  times.call = {.prompt_row_s = 0.5, .token_s = 0.25};
  EXPECT_EQ(span_time(times, {1, 3}), (StepTime{0.7, 6.25}));
  EXPECT_EQ(span_time(times, {3, 4}), (StepTime{0.6, 2.25}));
}

TEST(LayerTimes, LayersOfTheSameTensorsAreOneKind) {
  for (const char* name : {"qwen35moe", "qwen35", "laguna", "gemma4", "gemma4moe", "qwen3"}) {
    const Model model = golden(name);
    const std::vector<LayerUnit> units = layer_units(model);
    int begin = 0, kinds = 0;
    for (const LayerUnit& unit : units) {
      EXPECT_EQ(unit.layers.begin, begin);
      EXPECT_GT(unit.layers.size(), 0);
      EXPECT_LE(unit.kind, kinds);
      kinds = std::max(kinds, unit.kind + 1);
      begin = unit.layers.end;
    }
    EXPECT_EQ(begin, model.spec().n_layer());
    EXPECT_LT(kinds, static_cast<int>(units.size())) << name;
    if (std::string(name) == "qwen3") {
      EXPECT_EQ(kinds, 1);
    }
  }
}

TEST(LayerTimes, ASlowDeviceGetsFewerLayers) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  const Plan even = planned(model, timed_devices({even_times(n, 1e-3), even_times(n, 1e-3)}));
  EXPECT_EQ(even.cut_by, CutBy::times);
  EXPECT_EQ(even.shards[0].layout.end_layer, n / 2);
  const Plan slow = planned(model, timed_devices({even_times(n, 1e-3), even_times(n, 3e-3)}));
  EXPECT_GT(slow.shards[0].layout.end_layer, n / 2);
  const Plan other = planned(model, timed_devices({even_times(n, 3e-3), even_times(n, 1e-3)}));
  EXPECT_LT(other.shards[0].layout.end_layer, n / 2);
  // By weights nothing is said of times, but what the cut takes is known.
  const Plan fixed = planned(model, timed_devices({even_times(n, 1e-3), even_times(n, 3e-3)}),
                             {.layer_weights = {1, 1}});
  EXPECT_EQ(fixed.cut_by, CutBy::weights);
  EXPECT_EQ(fixed.shards[0].layout.end_layer, n / 2);
  ASSERT_TRUE(fixed.shards[1].time);
  EXPECT_NEAR(fixed.shards[1].time->token_s, 3e-3 * (n - n / 2 + 1), 1e-12);
}

TEST(LayerTimes, SlowLayersCountAsWhatTheyAre) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  LayerTimes uneven = even_times(n, 1e-3);
  uneven.layers[0] = {.prompt_row_s = 1.0, .token_s = 1.0};
  const Plan plan = planned(model, timed_devices({uneven, uneven}));
  EXPECT_EQ(plan.shards[0].layout.end_layer, 1);  // by bytes all layers are equal
}

TEST(LayerTimes, TheRatioWeighsPromptsAgainstTokens) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  // Alike with prompts; the second needs three times as long for a token.
  LayerTimes second = even_times(n, 1e-3);
  for (StepTime& time : second.layers) time.token_s *= 3.0;
  const Inventory inventory = timed_devices({even_times(n, 1e-3), second});
  EXPECT_EQ(planned(model, inventory, {.prompt_ratio = 1000.0}).shards[0].layout.end_layer, n / 2);
  EXPECT_EQ(planned(model, inventory, {.prompt_ratio = 0.0}).shards[0].layout.end_layer, n - 1);
  EXPECT_FALSE(make_plan(model, inventory, {.prompt_ratio = -1.0}));
}

TEST(LayerTimes, BudgetsComeBeforeSpeed) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  Inventory inventory = timed_devices({even_times(n, 1e-4), even_times(n, 1e-3)});
  const Plan roomy = planned(model, inventory);
  ASSERT_GT(roomy.shards[0].layout.end_layer, 1);
  inventory.devices[0].budget = roomy.shards[0].total_bytes() + roomy.shards[0].host_bytes - 1;
  const Plan tight = planned(model, inventory);
  EXPECT_LT(tight.shards[0].layout.end_layer, roomy.shards[0].layout.end_layer);
  EXPECT_GE(tight.shards[0].free_bytes(), 0);
}

// A device with memory of its own is not given more than that holds, budget or not.
TEST(LayerTimes, MemoryOfItsOwnIsABudget) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  Inventory inventory = timed_devices({even_times(n, 1e-4), even_times(n, 1e-3)});
  inventory.devices[0].memory = 1;
  const Plan roomy = planned(model, inventory);
  inventory.devices[0].memory_free = roomy.shards[0].total_bytes() + roomy.shards[0].host_bytes - 1;
  const Plan tight = planned(model, inventory);
  EXPECT_LT(tight.shards[0].layout.end_layer, roomy.shards[0].layout.end_layer);
}

TEST(LayerTimes, OneDeviceWithoutThemAndBytesDecide) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  Inventory inventory = timed_devices({even_times(n, 1e-3), even_times(n, 9e-3)});
  inventory.devices[0].times->layers.pop_back();  // of another model
  const Plan plan = planned(model, inventory);
  EXPECT_EQ(plan.cut_by, CutBy::bytes);
  EXPECT_EQ(plan.shards[0].layout.end_layer, n / 2);
  EXPECT_FALSE(plan.shards[1].time);
  EXPECT_FALSE(predict(model, plan, std::nullopt));
}

TEST(Prediction, IsTheSlowestWithPromptsAndTheSumWithTokens) {
  const Model model = golden("qwen3");
  const int n = model.spec().n_layer();
  Inventory inventory = timed_devices({even_times(n, 1e-3), even_times(n, 2e-3)});
  inventory.devices[1].remote = true;  // where a layer is measured makes no difference
  inventory.devices[1].name = "worker:0";
  Plan plan = planned(model, inventory, {.layer_weights = {1, 1}});
  plan.predicted = predict(model, plan, std::nullopt);
  ASSERT_TRUE(plan.predicted);
  EXPECT_TRUE(plan.predicted->measured);
  const double a = 1e-3 * (n / 2), b = 2e-3 * (n - n / 2);
  EXPECT_NEAR(plan.predicted->prefill.tokens_per_s, 10.0 / b, 1e-6);
  EXPECT_EQ(plan.predicted->prefill.bound, "worker:0");
  EXPECT_NEAR(plan.predicted->decode.tokens_per_s, 1.0 / (a + b + 2e-3), 1e-6);
  EXPECT_NE(plan.predicted->decode.bound.find("worker:0 for"), std::string::npos);
  // And each device's part of it.
  ASSERT_EQ(plan.predicted->shards.size(), 2U);
  EXPECT_NEAR(plan.predicted->shards[0].prefill.tokens_per_s, 10.0 / a, 1e-6);
  EXPECT_NEAR(plan.predicted->shards[1].token_s, b + 2e-3, 1e-9);
  // The first piece passes the shards one after the other.
  const int rows = plan.piece_rows;
  EXPECT_NEAR(predicted_prompt(plan, rows).tokens_per_s, 10.0 / (a + b), 1e-6);
  EXPECT_NEAR(predicted_prompt(plan, 10 * rows).tokens_per_s, 100.0 / (10.0 * b + a), 1e-6);
  const std::string table = plan_table(plan);
  EXPECT_NE(table.find("Prompts: about "), std::string::npos) << table;
  EXPECT_EQ(plan_json(plan)["predicted"]["measured"], true);

  // With experts away the times of whole layers say nothing.
  plan.shards[0].layout.experts.resize(1);
  EXPECT_FALSE(predict(model, plan, MeasuredSpeed{1e9, 1e9, 1e9}));
}

// What was tried in vain is no advice.
TEST(Prediction, TimesThatCouldNotBeMeasuredAreNotAdvised) {
  const Model model = golden("qwen3");
  Inventory inventory = timed_devices({{}, {}});
  inventory.devices[1].remote = true;
  Plan plan = planned(model, inventory);
  const auto advised = [&] {
    return plan_table(plan).find("--layer-times measure") != std::string::npos;
  };
  EXPECT_TRUE(advised());
  plan.unmeasured = "cpu:1 was not measured: why";
  EXPECT_FALSE(advised());
  for (const char* line : {"Layers are cut by their bytes; cpu:1 was not measured: why.\n",
                           "Speed: not measured; cpu:1 was not measured: why.\n"})
    EXPECT_NE(plan_table(plan).find(line), std::string::npos) << plan_table(plan);
}

TEST(Prediction, OfAMachineIsABound) {
  const Model model = golden("qwen3");
  Inventory inventory = timed_devices({{}, {}});
  Plan plan = planned(model, inventory);
  EXPECT_EQ(plan.cut_by, CutBy::bytes);
  plan.predicted = predict(model, plan, MeasuredSpeed{1e9, 1e12, 1e9});
  ASSERT_TRUE(plan.predicted);
  EXPECT_FALSE(plan.predicted->measured);
  EXPECT_NE(plan_table(plan).find("Prompts: at most "), std::string::npos);
  EXPECT_NE(plan_table(plan).find("bytes; --layer-times measure cuts them by time.\n"),
            std::string::npos);
  EXPECT_NE(plan_table(plan).find("  cpu:1: prompts "), std::string::npos) << plan_table(plan);
  EXPECT_EQ(plan.predicted->shards[1].token_bound, "reading weights");
  EXPECT_EQ(plan.predicted->decode.bound, "reading weights");
}

}  // namespace
}  // namespace tessera
