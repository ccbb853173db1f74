// How often a supervised worker was started, as the metrics say.
#pragma once

#include <cstdint>
#include <string>

#include "base/metrics.h"
#include "worker/lifecycle.h"

namespace tessera::worker {

inline std::uint64_t starts_for(MetricsRegistry& metrics, const std::string& worker,
                                const std::string& reason) {
  return metrics
      .counter("tessera_worker_starts_total", "", {{"worker", worker}, {"reason", reason}})
      .value();
}

inline std::uint64_t all_starts(MetricsRegistry& metrics, const std::string& worker) {
  std::uint64_t sum = starts_for(metrics, worker, "first");
  for (const DeathReason after :
       {DeathReason::start_failed, DeathReason::refused, DeathReason::exited,
        DeathReason::disconnected, DeathReason::protocol, DeathReason::hung})
    sum += starts_for(metrics, worker, death_reason_name(after));
  return sum;
}

}  // namespace tessera::worker
