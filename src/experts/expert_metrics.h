// ExpertMetrics: what was computed where, for all shards of a process and over restarts of workers.
//
//   ExpertMetrics metrics(registry);
//   metrics.worker.calls.add();
//   metrics.count_fallback(WorkerFailure::deadline);
//   metrics.totals().worker.calls;                // so far
//
// Every series is there from the start, at 0. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/metrics.h"
#include "experts/expert_counts.h"
#include "experts/expert_use.h"

namespace tessera {

// Why a worker did not compute a job, or was not given it.
enum class WorkerFailure {
  deadline,     // it took too long
  no_credit,    // it had as many jobs as it takes
  unavailable,  // it was away, or went
  refused,      // it does not take such a job
  not_finite,   // its sums are infinite or no numbers
  failed,       // it answered with an error
  slow,         // it was passed over, since the host is faster
  no_room,      // it has not those experts, for want of memory
};
inline constexpr int kWorkerFailures = 8;
const char* worker_failure_name(WorkerFailure failure);

// What a job of one row takes an executor, as the placement reckoned. 0: it did not.
struct PlacedCost {
  double call_us = 0.0;
  double bytes_per_us = 0.0;

  std::uint64_t us(std::uint64_t jobs, std::uint64_t bytes) const {
    if (bytes_per_us <= 0) return 0;
    return static_cast<std::uint64_t>(static_cast<double>(jobs) * call_us +
                                      static_cast<double>(bytes) / bytes_per_us);
  }
};

class ExpertMetrics {
 public:
  // Of an executor other than the device: the host, or all workers.
  struct Executor {
    Counter& calls;         // jobs that it was given
    Counter& pairs;         // that it computed
    Counter& wait_us;       // that layers waited for it
    Counter& hidden_us;     // that it computed while this process did work of the layer
    Counter& expert_bytes;  // of experts that its jobs needed
    // Of jobs of one row, whose cost the placement reckoned with.
    Counter& row_calls;
    Counter& row_bytes;  // of the experts that they needed
    Counter& predicted_us;
    Counter& taken_us;  // waited for, or computed where that is longer
  };

  explicit ExpertMetrics(MetricsRegistry& registry);

  Executor host;
  Executor worker;
  Counter& pairs_resident;
  Counter& expert_bytes_resident;
  Counter& pairs_streamed;  // whose experts crossed to the device for a step
  Counter& expert_bytes_streamed;
  Counter& streamed_experts;   // that crossed
  Counter& streamed_bytes;     // as the device has them
  Counter& streamed_ahead;     // of the experts: they came before their layer was computed
  Counter& unstreamed_layers;  // whose experts were to cross, and do not for want of pinned memory
  Counter& foreseen;           // pairs of the host whose experts it was told of before
  Counter& unforeseen;         // and those of layers for which it was told of others
  Counter& mixed_layers;       // layers of steps some of whose pairs were not resident
  Counter& bytes_out;          // to workers
  Counter& bytes_in;
  // Jobs that the host computed too because a worker's sums were late, by who was first.
  Counter& races_host;
  Counter& races_worker;
  Counter& cache_hit;   // pairs of experts that came while serving
  Counter& cache_miss;  // pairs of experts away, in layers with places for experts that come
  Counter& cache_admit;
  Counter& cache_evict;
  Counter& cache_useless;  // of these, never used since they came
  Counter& cache_stopped;  // of shards: no more come, for want of memory
  Counter& cache_unread;   // the same, since the model's file was not read

  // A job that the host computes in a worker's place.
  void count_fallback(WorkerFailure why) { count(fallbacks_, why); }
  // A job that nobody computes, since the worker is required.
  void count_required_failure(WorkerFailure why) { count(required_failures_, why); }

  ExpertUse totals() const;

  // Of layers in a process without workers of its own: what it counted, and that added to this one,
  // which knows what its host was reckoned to cost.
  ExpertCounts counts() const;
  void add(const ExpertCounts& counts, const PlacedCost& cost);

 private:
  // In the order of kExpertCountFields.
  std::array<Counter*, kExpertCountFields.size()> of_layers() const;

  using ByReason = std::array<Counter*, kWorkerFailures>;
  static ByReason by_reason(MetricsRegistry& registry, const char* name, const char* help);
  static void count(const ByReason& counters, WorkerFailure why) {
    counters[static_cast<std::size_t>(why)]->add();
  }

  ByReason fallbacks_;
  ByReason required_failures_;
};

}  // namespace tessera
