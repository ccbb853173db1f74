#include "plan/topology_advice.h"

#include <algorithm>

#include "plan/shard_planner.h"

namespace tessera {
namespace {

bool experts_are_away(const Plan& plan) {
  return std::any_of(plan.shards.begin(), plan.shards.end(), [](const ShardPlan& shard) {
    return shard.experts_host + shard.experts_worker > 0;
  });
}

// The devices are taken to read experts as fast as the host does.
bool a_worker_may_win(const Inventory& inventory, const PlanOptions& options, const Plan& plan) {
  for (std::size_t w = 0; w < plan.expert_workers.size(); ++w) {
    const ExpertWorkerInventory& worker = inventory.expert_workers[w];
    const bool strong = !worker.here || worker.bytes_per_s > options.expert_costs.bytes_per_s;
    if (plan.expert_workers[w].experts > 0 && strong) return true;
  }
  return false;
}

}  // namespace

std::string topology_advice(const Model& model, const Inventory& inventory,
                            const PlanOptions& options, const Plan& plan) {
  if (!experts_are_away(plan) || a_worker_may_win(inventory, options, plan)) return {};
  Inventory devices = inventory;
  devices.expert_workers.clear();
  PlanOptions whole = options;
  whole.expert_resident = 100.0;
  whole.expert_spare = {};
  whole.expert_workers_required = false;
  const ShardPlanner planner(model, devices, whole,
                             {.context = plan.context, .process_bytes = plan.process_bytes});
  if (!planner.fits()) return {};
  const bool split = plan.shards.size() > 1;
  return fmt::format(
      "All weights fit {}, which is expected to be faster: --expert-resident all{}.",
      split ? "these devices as a layer split" : fmt::format("on {}", plan.shards.front().device),
      inventory.expert_workers.empty() ? "" : ", without workers of experts");
}

}  // namespace tessera
