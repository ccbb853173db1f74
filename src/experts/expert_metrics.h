// ExpertMetrics: what was computed where, for all shards of a process and over restarts of workers.
//
//   ExpertMetrics metrics(registry);
//   metrics.worker.calls.add();
//   metrics.count_fallback("deadline");
//   metrics.totals().worker.calls;                // so far
//
// Threads: counters may be raised by any; count_fallback() takes the registry's lock, so it is for
// what is rare.
#pragma once

#include <string_view>

#include "base/metrics.h"
#include "experts/expert_use.h"

namespace tessera {

class ExpertMetrics {
 public:
  // Of an executor other than the device: the host, or all workers.
  struct Executor {
    Counter& calls;      // jobs that it was given
    Counter& pairs;      // that it computed
    Counter& wait_us;    // that layers waited for it
    Counter& hidden_us;  // that it computed while nobody waited
  };

  explicit ExpertMetrics(MetricsRegistry& registry);

  Executor host;
  Executor worker;
  Counter& pairs_resident;
  Counter& mixed_layers;  // layers of steps some of whose pairs were not resident
  Counter& bytes_out;     // to workers
  Counter& bytes_in;
  Counter& cache_hit;   // pairs of experts that came while serving
  Counter& cache_miss;  // pairs that were not resident
  Counter& cache_admit;
  Counter& cache_evict;

  // A job that the host computes in a worker's place.
  void count_fallback(std::string_view reason);

  ExpertUse totals() const;

 private:
  MetricsRegistry& registry_;
  Counter fallbacks_;  // for any reason
};

}  // namespace tessera
