// The workers of experts in a plan: what each is given and every byte that it takes, as it will
// reckon itself (experts/expert_worker.h).
#pragma once

#include <span>
#include <vector>

#include "plan/plan.h"

namespace tessera {

// The homes of every layer's experts, from the shards of this process; others have none to give.
std::vector<LayerExperts> homes_of_all_layers(std::span<const ShardPlan> shards, int n_layer);

// Rows of a job that a worker is given at most: those of a shard's step, or of the option.
int expert_job_rows(int shard_rows, const PlanOptions& options);

// A worker's costs. What was not measured is assumed to be as with the host.
ExpertCosts worker_costs(const ExpertWorkerInventory& worker, const ExpertCosts& host);

// Of all who may compute experts away: the workers in the inventory's order, where experts leave
// devices of this process, then the host, where it may, or where experts leave a worker with
// layers.
std::vector<ExecutorCosts> executor_costs(std::span<const ShardPlan> shards,
                                          std::span<const ExpertWorkerInventory> workers,
                                          const PlanOptions& options);

// In the inventory's order, with jobs of `job_rows` rows.
std::vector<ExpertWorkerPlan> plan_expert_workers(const Model& model,
                                                  std::span<const ExpertWorkerInventory> workers,
                                                  std::span<const ShardPlan> shards, int job_rows);

}  // namespace tessera
