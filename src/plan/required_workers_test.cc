// Plans whose experts away are all to be at workers (--expert-ipc-required).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "plan/planner_rig.h"

namespace tessera {
namespace {

Inventory inventory_with_worker(std::int64_t budget) {
  Inventory inventory = machine(1);
  inventory.expert_workers = {{.name = "worker:0", .budget = budget}};
  return inventory;
}

TEST(RequiredWorkers, TakeAllOrThereIsNoPlan) {
  const Model& model = expert_heavy();
  PlanOptions options{.context = 256, .expert_resident = 50.0, .expert_workers_required = true};
  const Result<Plan> roomy = make_plan(model, inventory_with_worker(kPlenty), options);
  ASSERT_TRUE(roomy) << roomy.error().message;
  EXPECT_EQ(roomy->shards[0].experts_host, 0);
  const ExpertWorkerPlan& worker = roomy->expert_workers.front();
  EXPECT_TRUE(
      make_plan(model, inventory_with_worker(worker.total_bytes() + worker.host_bytes), options));

  const std::int64_t little = worker.host_bytes + worker.scratch_bytes + worker.weight_bytes / 2;
  const Result<Plan> lacking = make_plan(model, inventory_with_worker(little), options);
  ASSERT_FALSE(lacking);
  EXPECT_EQ(lacking.error().code, ErrorCode::exhausted);
  const std::string& text = lacking.error().message;
  EXPECT_NE(text.find("--expert-ipc-required: "), std::string::npos) << text;
  EXPECT_NE(text.find("worker:0 with a budget of "), std::string::npos) << text;
  const std::size_t advice = text.find("; a budget of ");
  ASSERT_NE(advice, std::string::npos) << text;
  long mib = 0;
  ASSERT_EQ(std::sscanf(text.c_str() + advice, "; a budget of %ld MiB for worker:0", &mib), 1)
      << text;
  EXPECT_TRUE(make_plan(model, inventory_with_worker(mib << 20), options)) << text;

  options.expert_workers_required = false;
  const Result<Plan> helped = make_plan(model, inventory_with_worker(little), options);
  ASSERT_TRUE(helped);
  EXPECT_GT(helped->shards[0].experts_host, 0);
}

// Where the device lacks memory and so does the worker, one piece of advice has both.
TEST(RequiredWorkers, AreAdvisedWithTheirDevice) {
  const Model& model = expert_heavy();
  for (const std::optional<double> resident : {std::optional(50.0), std::optional<double>()}) {
    const PlanOptions options{
        .context = 256, .expert_resident = resident, .expert_workers_required = true};
    Inventory inventory = inventory_with_worker(kPlenty);
    const Result<Plan> roomy = make_plan(model, inventory, options);
    ASSERT_TRUE(roomy) << roomy.error().message;
    const ExpertWorkerPlan& worker = roomy->expert_workers.front();
    inventory.expert_workers[0].budget = worker.host_bytes + (std::int64_t{1} << 20);
    inventory.devices[0].budget = std::int64_t{1} << 20;
    const Result<Plan> lacking = make_plan(model, inventory, options);
    ASSERT_FALSE(lacking);
    const std::string& text = lacking.error().message;
    const std::size_t advice = text.find("a budget of ", text.rfind(';'));
    ASSERT_NE(advice, std::string::npos) << text;
    long device = 0, of_worker = 0;
    ASSERT_EQ(std::sscanf(text.c_str() + advice,
                          "a budget of %ld MiB for cpu:0 and a budget of %ld MiB for worker:0",
                          &device, &of_worker),
              2)
        << text;
    inventory.devices[0].budget = std::int64_t{device} << 20;
    inventory.expert_workers[0].budget = std::int64_t{of_worker} << 20;
    const Result<Plan> plan = make_plan(model, inventory, options);
    EXPECT_TRUE(plan) << text << "\n" << plan.error().message;
  }
}

// What a layer costs is what it costs with the workers, however near the host is.
TEST(RequiredWorkers, AloneDecideWhatStays) {
  const Model& model = expert_heavy();
  PlanOptions options{.context = 256, .prefill_chunk = 16};
  options.expert_costs = {.call_s = 0.0, .bytes_per_s = 1e9};
  for (const LayerSpec& layer : model.spec().layers)
    for (auto& counts = options.expert_counts.emplace_back();
         std::cmp_less(counts.size(), layer.moe->n_expert);)
      counts.push_back(1000.0 - static_cast<double>(counts.size()));
  Inventory inventory = inventory_with_worker(kPlenty);
  inventory.expert_workers[0].call_s = 0.1;
  inventory.expert_workers[0].bytes_per_s = 1e9;
  const Result<Plan> all = make_plan(model, inventory, options);
  ASSERT_TRUE(all);
  const ShardPlan& shard = all->shards[0];
  inventory.devices[0].budget = shard.total_bytes() + shard.host_bytes - shard.weight_bytes / 3;
  const auto whole = [&] {
    const Result<Plan> plan = make_plan(model, inventory, options);
    EXPECT_TRUE(plan) << plan.error().message;
    if (!plan) return std::ptrdiff_t{-1};
    EXPECT_EQ(plan->shards[0].experts_host, 0);
    const auto& layers = plan->shards[0].layout.experts;
    return std::count_if(layers.begin(), layers.end(),
                         [](const LayerExperts& layer) { return layer.all_resident(); });
  };
  EXPECT_EQ(whole(), 0) << "the likeliest of every layer";
  options.expert_workers_required = true;
  EXPECT_GT(whole(), 0) << "calls are dear";
}

}  // namespace
}  // namespace tessera
