// ExpertMetrics: what was computed where, for all shards of a process and over restarts of workers.
//
//   ExpertMetrics metrics(registry);
//   metrics.fallback("deadline").add();
//
// Threads: counters may be raised by any; fallback() takes the registry's lock, so it is for what
// is rare.
#pragma once

#include <string_view>

#include "base/metrics.h"

namespace tessera {

class ExpertMetrics {
 public:
  explicit ExpertMetrics(MetricsRegistry& registry);

  Counter& calls;         // jobs given to an executor other than the device
  Counter& mixed_layers;  // layers of steps some of whose pairs were not resident
  Counter& pairs_resident;
  Counter& pairs_host;
  Counter& pairs_worker;
  Counter& bytes_out;  // to workers
  Counter& bytes_in;
  Counter& wait_us;     // waited for executors
  Counter& hidden_us;   // that they computed while nobody waited
  Counter& cache_hit;   // pairs of experts that came while serving
  Counter& cache_miss;  // pairs that were not resident
  Counter& cache_admit;
  Counter& cache_evict;

  // Jobs that the host computed in a worker's place.
  Counter& fallback(std::string_view reason);

 private:
  MetricsRegistry& registry_;
};

}  // namespace tessera
