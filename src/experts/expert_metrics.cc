#include "experts/expert_metrics.h"

#include <numeric>

namespace tessera {
namespace {

Counter& pairs(MetricsRegistry& registry, const char* tier) {
  return registry.counter("tessera_moe_pairs_total",
                          "Pairs of a row and an expert, by who computed.", {{"tier", tier}});
}

Counter& expert_bytes(MetricsRegistry& registry, const char* tier) {
  return registry.counter("tessera_moe_expert_bytes_total",
                          "Bytes of experts that jobs and steps needed, by who computed.",
                          {{"tier", tier}});
}

Counter& bytes(MetricsRegistry& registry, const char* direction) {
  return registry.counter("tessera_moe_bytes_total", "Rows, pairs and sums to and from workers.",
                          {{"dir", direction}});
}

Counter& races(MetricsRegistry& registry, const char* winner) {
  return registry.counter("tessera_moe_races_total",
                          "Jobs of late workers that the host computed too, by who was first.",
                          {{"winner", winner}});
}

Counter& foreseen_pairs(MetricsRegistry& registry, const char* outcome) {
  return registry.counter("tessera_moe_foreseen_total",
                          "Pairs of the host in layers whose experts a device foresaw, by whether "
                          "it foresaw this one.",
                          {{"outcome", outcome}});
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
                                    "Microseconds of expert compute elsewhere behind work of "
                                    "this process.",
                                    labels),
      .expert_bytes = expert_bytes(registry, tier),
      .row_calls =
          registry.counter("tessera_moe_row_calls_total", "Of these, jobs of one row.", labels),
      .row_bytes = registry.counter("tessera_moe_row_bytes_total",
                                    "Bytes of experts that jobs of one row needed.", labels),
      .predicted_us = registry.counter("tessera_moe_predicted_us_total",
                                       "Microseconds that the placement reckoned with for jobs of "
                                       "one row.",
                                       labels),
      .taken_us = registry.counter("tessera_moe_taken_us_total",
                                   "Microseconds that these jobs took.", labels)};
}

ExpertUse::Executor use_of(const ExpertMetrics::Executor& executor) {
  return {.calls = static_cast<double>(executor.calls.value()),
          .pairs = static_cast<double>(executor.pairs.value()),
          .wait_us = static_cast<double>(executor.wait_us.value()),
          .hidden_us = static_cast<double>(executor.hidden_us.value())};
}

}  // namespace

const char* worker_failure_name(WorkerFailure failure) {
  constexpr const char* kNames[kWorkerFailures] = {
      "deadline", "no_credit", "unavailable", "refused", "not_finite", "failed", "slow", "no_room"};
  return kNames[static_cast<std::size_t>(failure)];
}

ExpertMetrics::ExpertMetrics(MetricsRegistry& registry)
    : host(executor(registry, "host")),
      worker(executor(registry, "worker")),
      pairs_resident(pairs(registry, "resident")),
      expert_bytes_resident(expert_bytes(registry, "resident")),
      pairs_streamed(pairs(registry, "stream")),
      expert_bytes_streamed(expert_bytes(registry, "stream")),
      streamed_experts(registry.counter("tessera_moe_streamed_experts_total",
                                        "Experts that crossed to their device for a step; of few "
                                        "rows once a row.")),
      streamed_bytes(registry.counter("tessera_moe_streamed_bytes_total",
                                      "Bytes of experts that crossed to their device for a "
                                      "step.")),
      streamed_ahead(registry.counter("tessera_moe_streamed_ahead_total",
                                      "Of the experts that crossed those that did before their "
                                      "layer was computed: they were foreseen.")),
      unstreamed_layers(registry.counter("tessera_moe_unstreamed_layers_total",
                                         "Layers whose experts were to cross to their device and "
                                         "do not, by reason.",
                                         {{"reason", "no_memory"}})),
      foreseen(foreseen_pairs(registry, "right")),
      unforeseen(foreseen_pairs(registry, "missed")),
      mixed_layers(registry.counter("tessera_moe_mixed_layers_total",
                                    "Layers of steps with experts that were not resident.")),
      bytes_out(bytes(registry, "out")),
      bytes_in(bytes(registry, "in")),
      races_host(races(registry, "host")),
      races_worker(races(registry, "worker")),
      cache_hit(registry.counter("tessera_moe_cache_hit_total",
                                 "Pairs of experts that became resident while serving.")),
      cache_miss(registry.counter("tessera_moe_cache_miss_total",
                                  "Pairs of experts that were not resident, in layers with places "
                                  "for experts that become so.")),
      cache_admit(registry.counter("tessera_moe_cache_admit_total",
                                   "Experts that became resident while serving.")),
      cache_evict(registry.counter("tessera_moe_cache_evict_total",
                                   "Experts that were resident no longer.")),
      cache_useless(registry.counter("tessera_moe_cache_useless_total",
                                     "Experts that left without a use since they came.")),
      cache_stopped(registry.counter("tessera_moe_cache_stopped_total",
                                     "Shards whose experts stay where they are, by reason.",
                                     {{"reason", "memory"}})),
      cache_unread(registry.counter("tessera_moe_cache_stopped_total",
                                    "Shards whose experts stay where they are, by reason.",
                                    {{"reason", "file"}})),
      fallbacks_(
          by_reason(registry, "tessera_moe_fallback_total",
                    "Jobs that the host computed in a worker's place, by reason; of slow and "
                    "no_room layers of steps, whose pairs were never cut into jobs.")),
      required_failures_(by_reason(registry, "tessera_moe_required_failures_total",
                                   "Jobs of required workers that failed their requests, by "
                                   "reason.")) {}

ExpertMetrics::ByReason ExpertMetrics::by_reason(MetricsRegistry& registry, const char* name,
                                                 const char* help) {
  ByReason counters{};
  for (int i = 0; i < kWorkerFailures; ++i)
    counters[static_cast<std::size_t>(i)] = &registry.counter(
        name, help, {{"reason", worker_failure_name(static_cast<WorkerFailure>(i))}});
  return counters;
}

std::array<Counter*, kExpertCountFields.size()> ExpertMetrics::of_layers() const {
  return {&pairs_resident,    &host.calls,     &host.pairs,     &host.wait_us,
          &host.hidden_us,    &mixed_layers,   &cache_hit,      &cache_miss,
          &cache_admit,       &cache_evict,    &cache_useless,  &expert_bytes_resident,
          &host.expert_bytes, &host.row_calls, &host.row_bytes, &host.taken_us};
}

ExpertCounts ExpertMetrics::counts() const {
  ExpertCounts counts;
  const auto counters = of_layers();
  for (std::size_t i = 0; i < counters.size(); ++i)
    counts.*kExpertCountFields[i].value = counters[i]->value();
  return counts;
}

void ExpertMetrics::add(const ExpertCounts& counts, const PlacedCost& cost) {
  const auto counters = of_layers();
  for (std::size_t i = 0; i < counters.size(); ++i)
    counters[i]->add(counts.*kExpertCountFields[i].value);
  host.predicted_us.add(cost.us(counts.host_row_calls, counts.host_row_bytes));
}

ExpertUse ExpertMetrics::totals() const {
  return {.pairs_resident = static_cast<double>(pairs_resident.value()),
          .pairs_streamed = static_cast<double>(pairs_streamed.value()),
          .experts_streamed = static_cast<double>(streamed_experts.value()),
          .bytes_streamed = static_cast<double>(streamed_bytes.value()),
          .experts_ahead = static_cast<double>(streamed_ahead.value()),
          .pairs_foreseen = static_cast<double>(foreseen.value()),
          .pairs_unforeseen = static_cast<double>(unforeseen.value()),
          .host = use_of(host),
          .worker = use_of(worker),
          .bytes_out = static_cast<double>(bytes_out.value()),
          .bytes_in = static_cast<double>(bytes_in.value()),
          .fallbacks = std::accumulate(fallbacks_.begin(), fallbacks_.end(), 0.0,
                                       [](double sum, const Counter* counter) {
                                         return sum + static_cast<double>(counter->value());
                                       })};
}

}  // namespace tessera
