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

// One on this machine has the cores and the memory that the devices would have without it.
bool a_worker_may_win(const Plan& plan) {
  return std::any_of(plan.expert_workers.begin(), plan.expert_workers.end(),
                     [](const ExpertWorkerPlan& w) { return w.experts > 0 && !w.here; });
}

}  // namespace

std::string topology_advice(const Model& model, const Inventory& inventory,
                            const PlanOptions& options, const Plan& plan) {
  if (!experts_are_away(plan) || a_worker_may_win(plan)) return {};
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
