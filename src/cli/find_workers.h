// The workers that the options name, each asked about itself: what it has, what it may use and how
// fast it is, for the planner.
//
//   TESSERA_ASSIGN(placed.workers, find_layer_workers(config, model, placement));
//
// The model must outlive what is found. Errors: invalid where a worker is one that cannot be used
// (another model, other kernels), unavailable where it does not answer.
#pragma once

#include <vector>

#include "cli/config.h"
#include "model/model.h"
#include "plan/placement.h"
#include "plan/plan.h"
#include "worker/site.h"

namespace tessera::cli {

// The workers that hold layers in this placement.
struct LayerWorker {
  worker::WorkerSite site;
  WorkerInventory inventory;
};
Result<std::vector<LayerWorker>> find_layer_workers(const Config& config, const Model& model,
                                                    const Placement& placement);

// The workers that hold experts, spawned or at --expert-worker. One at an address that does not
// answer is there all the same, unless workers are required.
struct ExpertSite {
  worker::WorkerSite site;
  ExpertWorkerInventory inventory;
  int threads = 1;
};
Result<std::vector<ExpertSite>> find_expert_workers(const Config& config, const Model& model,
                                                    const Placement& placement);

}  // namespace tessera::cli
