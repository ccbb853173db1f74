// Predictions of plans with experts at workers.
#include "plan/prediction.h"

#include <gtest/gtest.h>

#include "plan/planner_rig.h"

namespace tessera {
namespace {

constexpr MeasuredSpeed kMachine{.read_bytes_per_s = 1e10, .op_per_s = 1e12};

Plan with_worker(double bytes_per_s, double call_s, double resident = 50.0) {
  Inventory inventory = machine(1);
  inventory.expert_workers = {
      {.name = "worker:0", .budget = kPlenty, .bytes_per_s = bytes_per_s, .call_s = call_s}};
  Result<Plan> plan =
      make_plan(golden("qwen35moe"), inventory, {.context = 256, .expert_resident = resident});
  EXPECT_TRUE(plan) << plan.error().message;
  plan->predicted = predict(golden("qwen35moe"), *plan, kMachine);
  return *std::move(plan);
}

TEST(ExpertWorkerPrediction, IsCallsAndBytes) {
  const Plan near = with_worker(1e9, 0.0), far = with_worker(1e9, 1e-3);
  ASSERT_TRUE(near.predicted && far.predicted);
  EXPECT_FALSE(near.predicted->measured);
  const auto& one = near.predicted->expert_workers.at(0);
  EXPECT_GT(one.bytes, 0.0);
  EXPECT_NEAR(one.token_s, one.bytes / 1e9, 1e-12);
  const auto& other = far.predicted->expert_workers.at(0);
  EXPECT_GT(other.calls, 0.5);
  EXPECT_LE(other.calls, golden("qwen35moe").spec().n_layer());
  EXPECT_NEAR(other.token_s, other.bytes / 1e9 + other.calls * 1e-3, 1e-12);
  // With none resident every layer calls, for all of the experts.
  const Plan none = with_worker(1e9, 1e-3, 0.0);
  EXPECT_GT(none.predicted->expert_workers.at(0).calls, 0.9 * golden("qwen35moe").spec().n_layer());
  EXPECT_NEAR(none.predicted->expert_workers.at(0).bytes, 2.0 * other.bytes, 1.0);
}

// It computes beside the device, so the slower of both is the bound.
TEST(ExpertWorkerPrediction, BoundsWhereItIsTheSlower) {
  const Plan far = with_worker(1e9, 1e-3);
  ASSERT_TRUE(far.predicted);
  EXPECT_EQ(far.predicted->decode.bound, "experts at worker:0");
  EXPECT_NEAR(far.predicted->decode.tokens_per_s, 1.0 / far.predicted->expert_workers.at(0).token_s,
              1e-6);
  const Plan fast = with_worker(1e15, 0.0);
  ASSERT_TRUE(fast.predicted);
  EXPECT_EQ(fast.predicted->decode.bound, "reading weights");
  EXPECT_GT(fast.predicted->decode.tokens_per_s, far.predicted->decode.tokens_per_s);
  EXPECT_NE(plan_table(far).find("  worker:0: "), std::string::npos) << plan_table(far);
  EXPECT_NE(plan_table(far).find(" calls of 1000 us"), std::string::npos) << plan_table(far);
  EXPECT_GT(plan_json(far)["predicted"]["expert_workers"][0]["s_per_token"], 0.0);
}

TEST(ExpertWorkerPrediction, IsNotMadeUp) {
  const Plan silent = with_worker(0.0, 0.0);
  EXPECT_FALSE(silent.predicted);
  EXPECT_NE(plan_table(silent).find("not predicted; worker:0 has not said how fast it reads"),
            std::string::npos)
      << plan_table(silent);
  Plan elsewhere = with_worker(1e9, 0.0);
  elsewhere.shards[0].kind = DeviceKind::cuda;
  EXPECT_FALSE(predict(golden("qwen35moe"), elsewhere, kMachine));
  elsewhere.predicted.reset();
  EXPECT_NE(plan_table(elsewhere).find("not predicted; layers are in a worker or on a GPU"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
