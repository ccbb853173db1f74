#include "experts/expert_metrics.h"

#include <string>

namespace tessera {
namespace {

Counter& pairs(MetricsRegistry& registry, const char* tier) {
  return registry.counter("tessera_moe_pairs_total",
                          "Pairs of a row and an expert, by who computed.", {{"tier", tier}});
}

Counter& bytes(MetricsRegistry& registry, const char* direction) {
  return registry.counter("tessera_moe_bytes_total", "Rows, pairs and sums to and from workers.",
                          {{"dir", direction}});
}

}  // namespace

ExpertMetrics::ExpertMetrics(MetricsRegistry& registry)
    : calls(registry.counter("tessera_moe_calls_total",
                             "Jobs of experts given to the host or to workers.")),
      mixed_layers(registry.counter("tessera_moe_mixed_layers_total",
                                    "Layers of steps with experts that were not resident.")),
      pairs_resident(pairs(registry, "resident")),
      pairs_host(pairs(registry, "host")),
      pairs_worker(pairs(registry, "worker")),
      bytes_out(bytes(registry, "out")),
      bytes_in(bytes(registry, "in")),
      wait_us(registry.counter("tessera_moe_wait_us_total",
                               "Microseconds that layers waited for experts elsewhere.")),
      hidden_us(registry.counter("tessera_moe_hidden_us_total",
                                 "Microseconds of expert compute elsewhere that no layer waited "
                                 "for.")),
      cache_hit(registry.counter("tessera_moe_cache_hit_total",
                                 "Pairs of experts that became resident while serving.")),
      cache_miss(registry.counter("tessera_moe_cache_miss_total",
                                  "Pairs of experts that were not resident.")),
      cache_admit(registry.counter("tessera_moe_cache_admit_total",
                                   "Experts that became resident while serving.")),
      cache_evict(registry.counter("tessera_moe_cache_evict_total",
                                   "Experts that were resident no longer.")),
      registry_(registry) {}

Counter& ExpertMetrics::fallback(std::string_view reason) {
  return registry_.counter("tessera_moe_fallback_total",
                           "Jobs that the host computed in a worker's place, by reason.",
                           {{"reason", std::string(reason)}});
}

}  // namespace tessera
