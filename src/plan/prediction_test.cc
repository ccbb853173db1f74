// Predictions of plans with experts at workers.
#include "plan/prediction.h"

#include <gtest/gtest.h>

#include <utility>

#include "plan/planner_rig.h"

namespace tessera {
namespace {

constexpr MeasuredSpeed kMachine{
    .read_bytes_per_s = 1e10, .op_per_s = 1e12, .thread_read_bytes_per_s = 1e10};

Plan with_worker(double bytes_per_s, double call_s, double resident = 50.0, double op_per_s = 0.0) {
  Inventory inventory = machine(1);
  inventory.expert_workers = {{.name = "worker:0",
                               .budget = kPlenty,
                               .bytes_per_s = bytes_per_s,
                               .op_per_s = op_per_s,
                               .call_s = call_s}};
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

// With a prompt, where each expert that it reads has many rows.
TEST(ExpertWorkerPrediction, CountsArithmeticWhereItIsTold) {
  const Plan untold = with_worker(1e15, 0.0), told = with_worker(1e15, 0.0, 50.0, 1e9);
  ASSERT_TRUE(untold.predicted && told.predicted);
  EXPECT_NE(untold.predicted->prefill.bound, "experts at worker:0");
  EXPECT_EQ(told.predicted->prefill.bound, "experts at worker:0");
  EXPECT_EQ(told.predicted->decode.tokens_per_s, untold.predicted->decode.tokens_per_s);
  // A row's operations there: two for each weight of its experts, which are bf16.
  const ExpertWorkerPrediction& token = told.predicted->expert_workers.at(0);
  EXPECT_NEAR(1e9 / told.predicted->prefill.tokens_per_s, token.bytes, 1e-6 * token.bytes);
  const Plan half = with_worker(1e15, 0.0, 50.0, 5e8);
  EXPECT_NEAR(told.predicted->prefill.tokens_per_s, 2 * half.predicted->prefill.tokens_per_s, 1e-3);
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
  EXPECT_NE(plan_table(elsewhere).find("not predicted; cpu:0 has not said how fast it reads."),
            std::string::npos)
      << plan_table(elsewhere);
}

// Half of the experts away from their layers' device, which is not the host's processors.
Plan half_away(const DeviceInventory& device) {
  Result<Plan> plan = make_plan(golden("qwen35moe"), {.devices = {device}},
                                {.context = 256, .expert_resident = 50.0});
  EXPECT_TRUE(plan) << plan.error().message;
  return *std::move(plan);
}

DeviceInventory elsewhere(const char* name, bool remote, DeviceKind kind) {
  return {.name = name,
          .remote = remote,
          .kind = kind,
          .threads = 1,
          .bytes_per_s = 1e11,
          .memory = 1,
          .memory_free = kPlenty};
}

// The host reads what is away while the GPU reads the rest, from the file: half as much again. Of
// what lies in pinned memory the GPU reads a part meanwhile.
TEST(AwayPrediction, OfAGpuIsTheSlowerOfItAndTheHost) {
  const Model model = golden("qwen35moe");
  Plan plan = half_away(elsewhere("cuda:0", false, DeviceKind::cuda));
  EXPECT_GT(std::exchange(plan.shards[0].streamed_bytes, 0), 0);
  const auto token_s = [&](double gpu, double host) {
    Plan other = plan;
    other.shards[0].bytes_per_s = gpu;
    const auto predicted = predict(model, other, MeasuredSpeed{host, 1e12, host});
    EXPECT_TRUE(predicted);
    return predicted ? 1.0 / predicted->decode.tokens_per_s : 0.0;
  };
  const double gpu_bytes = token_s(1.0, 1e15), host_bytes = token_s(1e15, 1.0);
  EXPECT_GT(gpu_bytes, host_bytes);
  EXPECT_NEAR(gpu_bytes + host_bytes / 1.5, decode_bytes(model, {.kv_type = plan.kv_type}), 1.0);
  EXPECT_NEAR(token_s(1e11, 1e10), std::max(gpu_bytes / 1e11, host_bytes / 1e10), 1e-12);
  constexpr double kLink = 64e9;
  plan.shards[0].streamed_bytes = 1;
  EXPECT_NEAR(token_s(1e15, 1e10), host_bytes / (1e10 + 1.5 * kLink), 1e-12);
  plan.shards[0].streamed_bytes = 0;
  const auto predicted = predict(model, plan, kMachine);
  ASSERT_TRUE(predicted);
  EXPECT_FALSE(predicted->measured);
  EXPECT_EQ(predicted->decode.bound, "reading experts that are away");
  EXPECT_FALSE(predict(model, plan, std::nullopt)) << "the host's speed is not known";
  EXPECT_NE(plan_table(plan).find("tessera bench measures this machine"), std::string::npos);
}

// A worker reads all of its layers' weights itself, the experts' away half as much again.
TEST(AwayPrediction, OfAWorkerOfLayersIsItsOwnReading) {
  const Model model = golden("qwen35moe");
  Plan plan = half_away(elsewhere("worker:0", true, DeviceKind::cpu));
  const auto predicted = predict(model, plan, std::nullopt);
  ASSERT_TRUE(predicted);
  double away = 0.0;  // that a token reads: half of what it uses
  for (const TensorSlice& slice : model.tensors())
    if (slice.matrices > 1)
      away += 0.5 * model.spec().layers[static_cast<std::size_t>(slice.layer)].moe->n_used *
              static_cast<double>(slice.rows * row_bytes(slice.type, slice.cols));
  const double bytes = decode_bytes(model, {.kv_type = plan.kv_type}) + 0.5 * away;
  EXPECT_NEAR(predicted->decode.tokens_per_s, 1e11 / bytes, 1.0);
  EXPECT_EQ(predicted->prefill.bound, "reading weights");
  // And its own arithmetic, where it says how fast that is.
  plan.shards[0].op_per_s = 1e9;
  const auto slow = predict(model, plan, std::nullopt);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->prefill.bound, "arithmetic");
  plan.shards[0].op_per_s = 2e9;
  EXPECT_NEAR(predict(model, plan, std::nullopt)->prefill.tokens_per_s,
              2 * slow->prefill.tokens_per_s, 1e-6);
  EXPECT_EQ(slow->decode.tokens_per_s, predicted->decode.tokens_per_s);
  plan.shards[0].bytes_per_s = 0.0;
  EXPECT_FALSE(predict(model, plan, kMachine));
  EXPECT_NE(plan_table(plan).find("worker:0 has not said how fast it reads."), std::string::npos);
}

// What the host of somebody else's GPU does is not known.
TEST(AwayPrediction, OfAWorkersGpuIsNotMadeUp) {
  const Plan plan = half_away(elsewhere("worker:0", true, DeviceKind::cuda));
  EXPECT_FALSE(predict(golden("qwen35moe"), plan, kMachine));
  EXPECT_NE(plan_table(plan).find("how fast it reads what is away from its GPU"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
