// What the connection to a worker takes of memory at each end, for the plan to count before the
// connection is made.
//
//   device.connection = [=](const ShardLayout& layout) {
//     return layers_connection_bytes(site, spec, layout);
//   };
//
// Pure: they follow from the largest jobs that the plan allows, as do the rings and frames
// themselves (ring_sizes, serving_bytes, experts_serving_bytes).
#pragma once

#include "experts/options.h"
#include "plan/plan.h"
#include "worker/site.h"

namespace tessera::worker {

ConnectionBytes layers_connection_bytes(const WorkerSite& site, const ModelSpec& spec,
                                        const ShardLayout& layout);

ConnectionBytes experts_connection_bytes(const WorkerSite& site, const ModelSpec& spec,
                                         const ExpertJobs& jobs, ExpertPayload payload);

}  // namespace tessera::worker
