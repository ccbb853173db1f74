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

ExpertMetrics::Executor executor(MetricsRegistry& registry, const char* tier) {
  const MetricsRegistry::Labels labels = {{"tier", tier}};
  return {
      .calls = registry.counter("tessera_moe_calls_total",
                                "Jobs of experts given to the host or to workers.", labels),
      .pairs = pairs(registry, tier),
      .wait_us = registry.counter("tessera_moe_wait_us_total",
                                  "Microseconds that layers waited for experts elsewhere.", labels),
      .hidden_us = registry.counter("tessera_moe_hidden_us_total",
                                    "Microseconds of expert compute elsewhere that no layer "
                                    "waited for.",
                                    labels)};
}

ExpertUse::Executor use_of(const ExpertMetrics::Executor& executor) {
  return {.calls = static_cast<double>(executor.calls.value()),
          .pairs = static_cast<double>(executor.pairs.value()),
          .wait_us = static_cast<double>(executor.wait_us.value()),
          .hidden_us = static_cast<double>(executor.hidden_us.value())};
}

}  // namespace

ExpertMetrics::ExpertMetrics(MetricsRegistry& registry)
    : host(executor(registry, "host")),
      worker(executor(registry, "worker")),
      pairs_resident(pairs(registry, "resident")),
      mixed_layers(registry.counter("tessera_moe_mixed_layers_total",
                                    "Layers of steps with experts that were not resident.")),
      bytes_out(bytes(registry, "out")),
      bytes_in(bytes(registry, "in")),
      cache_hit(registry.counter("tessera_moe_cache_hit_total",
                                 "Pairs of experts that became resident while serving.")),
      cache_miss(registry.counter("tessera_moe_cache_miss_total",
                                  "Pairs of experts that were not resident.")),
      cache_admit(registry.counter("tessera_moe_cache_admit_total",
                                   "Experts that became resident while serving.")),
      cache_evict(registry.counter("tessera_moe_cache_evict_total",
                                   "Experts that were resident no longer.")),
      registry_(registry) {}

void ExpertMetrics::count_fallback(std::string_view reason) {
  fallbacks_.add();
  registry_
      .counter("tessera_moe_fallback_total",
               "Jobs that the host computed in a worker's place, by reason.",
               {{"reason", std::string(reason)}})
      .add();
}

ExpertUse ExpertMetrics::totals() const {
  return {.pairs_resident = static_cast<double>(pairs_resident.value()),
          .host = use_of(host),
          .worker = use_of(worker),
          .bytes_out = static_cast<double>(bytes_out.value()),
          .bytes_in = static_cast<double>(bytes_in.value()),
          .fallbacks = static_cast<double>(fallbacks_.value())};
}

}  // namespace tessera
