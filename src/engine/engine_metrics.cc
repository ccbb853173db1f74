#include "engine/engine_metrics.h"

#include <vector>

namespace tessera {
namespace {

const char* const kFinished = "tessera_generations_total";
const char* const kFinishedHelp = "Generations ended, by how they ended.";

std::vector<double> latency_bounds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
}

std::vector<double> row_bounds() {
  return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
}

std::array<Counter*, kAbsences> failures(MetricsRegistry& registry) {
  std::array<Counter*, kAbsences> counters{};
  for (int i = 0; i < kAbsences; ++i) {
    const char* name = absence_name(static_cast<Absence>(i));
    counters[static_cast<std::size_t>(i)] =
        &registry.counter("tessera_generation_errors_total", "Generations failed, by reason.",
                          {{"reason", name != nullptr ? name : "other"}});
  }
  return counters;
}

}  // namespace

EngineMetrics::EngineMetrics(MetricsRegistry& registry)
    : running(registry.gauge("tessera_requests_running", "Requests that hold a sequence slot.")),
      queued(registry.gauge("tessera_requests_queued", "Requests that wait for a slot or pages.")),
      healthy(registry.gauge("tessera_engine_healthy", "1, or 0 after a fatal error.")),
      rejected_queue(registry.counter("tessera_rejected_total", "Requests refused, by reason.",
                                      {{"reason", "queue_full"}})),
      rejected_unavailable(registry.counter(
          "tessera_rejected_total", "Requests refused, by reason.", {{"reason", "worker_away"}})),
      finished_stop(registry.counter(kFinished, kFinishedHelp, {{"finish", "stop"}})),
      finished_length(registry.counter(kFinished, kFinishedHelp, {{"finish", "length"}})),
      finished_cancelled(registry.counter(kFinished, kFinishedHelp, {{"finish", "cancelled"}})),
      finished_error(registry.counter(kFinished, kFinishedHelp, {{"finish", "error"}})),
      failed(failures(registry)),
      prompt_tokens(registry.counter("tessera_prompt_tokens_total", "Prompt tokens, by source.",
                                     {{"source", "computed"}})),
      generated_tokens(
          registry.counter("tessera_generation_tokens_total", "Tokens sampled for requests.")),
      queue_seconds(registry.histogram("tessera_queue_seconds", "From submission to a slot.",
                                       latency_bounds())),
      first_token_seconds(registry.histogram(
          "tessera_ttft_seconds", "From submission to the first token.", latency_bounds())),
      inter_token_seconds(registry.histogram(
          "tessera_inter_token_seconds", "Between two tokens of a sequence.", latency_bounds())),
      step_seconds(registry.histogram("tessera_step_seconds",
                                      "One step, from its begin or the end of the one before.",
                                      latency_bounds())),
      step_rows(registry.histogram("tessera_step_rows", "Rows in one step.", row_bounds())) {
  healthy.set(1);
}

}  // namespace tessera
