#include "experts/offload_bytes.h"

#include "experts/dispatcher.h"
#include "experts/host_executor.h"

namespace tessera {

std::int64_t offload_bytes(const Model& model, const ShardLayout& layout,
                           const OffloadThreads& by) {
  if (layout.experts.empty()) return 0;
  return host_executor_bytes(model,
                             {.first_layer = layout.first_layer,
                              .end_layer = layout.end_layer,
                              .max_rows = host_job_rows(layout),
                              .f32_weights = layout.f32_weights,
                              .threads = by.threads},
                             by.own ? 0 : by.threads) +
         Dispatcher::bytes(model.spec(), layout);
}

}  // namespace tessera
