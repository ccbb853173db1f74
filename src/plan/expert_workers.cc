#include "plan/expert_workers.h"

#include <algorithm>

#include "experts/expert_worker.h"

namespace tessera {

std::vector<LayerExperts> homes_of_all_layers(std::span<const ShardPlan> shards, int n_layer) {
  std::vector<LayerExperts> layers(static_cast<std::size_t>(n_layer));
  for (const ShardPlan& shard : shards)
    if (!shard.remote)
      std::copy(shard.layout.experts.begin(), shard.layout.experts.end(),
                layers.begin() + shard.layout.first_layer);
  return layers;
}

ExpertJobs expert_jobs(int shards, int shard_rows, const PlanOptions& options) {
  ExpertJobs jobs{.max_rows = std::min(shard_rows, options.expert_job_rows),
                  .shards = std::max(1, shards)};
  // A shard collects a layer's jobs before it sends the next layer's. A rest that fills no job, as
  // the rows that generate beside a whole chunk, is not worth the room of one: it waits for
  // another.
  const std::int64_t most = std::int64_t{jobs.shards} * (shard_rows / jobs.max_rows);
  jobs.under_way = static_cast<int>(std::min<std::int64_t>(kMostExpertJobs, most));
  return jobs;
}

ExpertCosts worker_costs(const ExpertWorkerInventory& worker, const ExpertCosts& host) {
  ExpertCosts costs{.call_s = host.call_s, .bytes_per_s = host.bytes_per_s};
  costs.call_measured = worker.call_s > 0.0;
  costs.speed_measured = worker.bytes_per_s > 0.0;
  if (costs.call_measured) costs.call_s = worker.call_s;
  if (costs.speed_measured) costs.bytes_per_s = worker.bytes_per_s;
  return costs;
}

std::vector<ExecutorCosts> executor_costs(std::span<const ShardPlan> shards,
                                          std::span<const ExpertWorkerInventory> workers,
                                          const PlanOptions& options) {
  bool here = false, there = false;
  for (const ShardPlan& shard : shards)
    (shard.remote ? there : here) |= shard.experts_host + shard.experts_worker > 0;
  std::vector<ExecutorCosts> all;
  if (here)
    for (const ExpertWorkerInventory& worker : workers)
      all.push_back({worker.name, worker_costs(worker, options.expert_costs)});
  if (there || (here && !options.expert_workers_required))
    all.push_back({kHostExecutor, options.expert_costs});
  return all;
}

std::vector<ExpertWorkerPlan> plan_expert_workers(const Model& model,
                                                  std::span<const ExpertWorkerInventory> workers,
                                                  std::span<const ShardPlan> shards,
                                                  const ExpertJobs& jobs) {
  std::vector<ExpertWorkerPlan> plans;
  if (workers.empty()) return plans;
  const std::vector<LayerExperts> homes = homes_of_all_layers(shards, model.spec().n_layer());
  for (std::size_t w = 0; w < workers.size(); ++w) {
    const ExpertWorkerInventory& worker = workers[w];
    const ExpertSetLayout layout = expert_worker_layout(
        model.spec(), homes, ExpertHome::worker(static_cast<int>(w)), jobs.max_rows);
    const ExpertWorkerFootprint bytes =
        expert_worker_footprint(model, layout, worker.threads, worker.kind != DeviceKind::cpu);
    ExpertWorkerPlan& plan = plans.emplace_back(ExpertWorkerPlan{.device = worker.name,
                                                                 .here = worker.here,
                                                                 .kind = worker.kind,
                                                                 .job_rows = jobs.max_rows,
                                                                 .jobs = jobs.under_way,
                                                                 .call_s = worker.call_s,
                                                                 .bytes_per_s = worker.bytes_per_s,
                                                                 .op_per_s = worker.op_per_s,
                                                                 .weight_bytes = bytes.weights,
                                                                 .scratch_bytes = bytes.scratch,
                                                                 .budget_bytes = worker.budget,
                                                                 .bounded = worker.bounded,
                                                                 .unheard = worker.unheard});
    for (const LayerExperts& layer : layout.experts) plan.experts += layer.resident();
    if (plan.experts == 0) continue;  // it is not started
    plan.threads = worker.threads;
    plan.host_bytes = kWorkerBytes;
    if (plan.on_gpu()) plan.host_bytes += gpu_worker_host_bytes(model.spec(), jobs.max_rows);
    if (worker.connection) plan.connection_bytes = worker.connection(jobs).there;
  }
  return plans;
}

}  // namespace tessera
