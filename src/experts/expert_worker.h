// A worker process of experts as the planner, the client and the worker itself reckon with it: what
// it holds and every byte that it takes, but for jobs and sums on their way, which are as they
// travel (worker/experts_handler.h). Pure functions.
//
//   const ExpertSetLayout layout = expert_worker_layout(spec, homes, ExpertHome::worker(1), 256);
//   const std::int64_t bytes = expert_worker_footprint(model, layout, threads).total();
#pragma once

#include <cstdint>
#include <span>

#include "base/checked.h"
#include "experts/expert_set.h"

namespace tessera {

// The experts whose home is `worker`, in `layers`: all of the model's from the first on. Jobs of
// `max_rows` rows, each with as many pairs as the model's routers choose at most.
ExpertSetLayout expert_worker_layout(const ModelSpec& spec, std::span<const LayerExperts> layers,
                                     ExpertHome worker, int max_rows);

// What the worker is left with of a layer's experts.
LayerExperts only_owned(std::vector<bool> owned);

struct ExpertWorkerFootprint {
  std::int64_t weights = 0;
  std::int64_t scratch = 0;  // of the computation, with a job's rows and sums in numbers
  std::int64_t total() const { return saturated_add(weights, scratch); }
};
// Nothing where the layout has no experts. Of a GPU's, its memory.
ExpertWorkerFootprint expert_worker_footprint(const Model& model, const ExpertSetLayout& layout,
                                              int threads, bool gpu = false);

// What a worker on a GPU takes of its machine's memory for jobs of so many rows, as they come and
// in numbers, and for their way to the GPU and back.
std::int64_t gpu_worker_host_bytes(const ModelSpec& spec, int max_rows);

// The same as a GPU is asked to hold it.
ShardLayout gpu_experts_layout(const ExpertSetLayout& layout);

struct ExpertWorkerSize {
  int max_rows = 0;  // of a job
  int threads = 0;
  bool gpu = false;
};
// What a worker takes besides its experts (ExpertLayerLoad::expert_bytes of each) and what is on
// its way, at most: with any experts of the model.
std::int64_t expert_worker_overhead(const Model& model, std::span<const std::int64_t> expert_bytes,
                                    const ExpertWorkerSize& size);

}  // namespace tessera
