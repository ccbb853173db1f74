// EngineMetrics: the series that the engine keeps, looked up once.
#pragma once

#include <array>

#include "base/metrics.h"
#include "engine/engine.h"

namespace tessera {

struct EngineMetrics {
  explicit EngineMetrics(MetricsRegistry& registry);

  Counter& finished(FinishReason reason) {
    switch (reason) {
      case FinishReason::stop:
        return finished_stop;
      case FinishReason::length:
        return finished_length;
      case FinishReason::cancelled:
        break;
    }
    return finished_cancelled;
  }

  void count_failure(Absence absence) {
    finished_error.add();
    failed[static_cast<std::size_t>(absence)]->add();
  }

  Gauge& running;
  Gauge& queued;
  Gauge& healthy;
  Counter& rejected_queue;
  Counter& rejected_unavailable;
  Counter& finished_stop;
  Counter& finished_length;
  Counter& finished_cancelled;
  Counter& finished_error;
  std::array<Counter*, kAbsences> failed;
  Counter& prompt_tokens;
  Counter& generated_tokens;
  Histogram& queue_seconds;
  Histogram& first_token_seconds;
  Histogram& inter_token_seconds;
  Histogram& step_seconds;
  Histogram& step_rows;
};

}  // namespace tessera
