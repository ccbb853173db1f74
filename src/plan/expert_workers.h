// The workers of experts in a plan: what each is given and every byte that it takes, as it will
// reckon itself (experts/expert_worker.h).
#pragma once

#include <span>
#include <vector>

#include "plan/plan.h"

namespace tessera {

// The homes of every layer's experts, from the shards of this process; others have none to give.
std::vector<LayerExperts> homes_of_all_layers(std::span<const ShardPlan> shards, int n_layer);

// What so many shards, each with steps of `shard_rows` rows, give a worker at most: jobs of a
// step's rows, or of the option's, as many as a step of every shard fills.
ExpertJobs expert_jobs(int shards, int shard_rows, const PlanOptions& options);

// A worker's costs. What was not measured is assumed to be as with the host.
ExpertCosts worker_costs(const ExpertWorkerInventory& worker, const ExpertCosts& host);

// Of all who may compute experts away: the workers in the inventory's order, where experts leave
// devices of this process, then the host, where it may, or where experts leave a worker with
// layers.
std::vector<ExecutorCosts> executor_costs(std::span<const ShardPlan> shards,
                                          std::span<const ExpertWorkerInventory> workers,
                                          const PlanOptions& options);

// In the inventory's order.
std::vector<ExpertWorkerPlan> plan_expert_workers(const Model& model,
                                                  std::span<const ExpertWorkerInventory> workers,
                                                  std::span<const ShardPlan> shards,
                                                  const ExpertJobs& jobs);

}  // namespace tessera
