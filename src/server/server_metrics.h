// The series that the HTTP layer keeps. Token counts and times between tokens are the engine's.
#pragma once

#include <string>
#include <string_view>

#include "base/metrics.h"

namespace tessera::server {

class ServerMetrics {
 public:
  explicit ServerMetrics(MetricsRegistry& registry);

  // `route` is from the table of routes or "other", so that the number of series is bounded.
  void count_request(std::string_view route, int status);
  void count_cancelled(std::string_view phase);
  std::string render() const { return registry_.render(); }

  Gauge& connections;
  Gauge& running;
  Gauge& queued;
  Histogram& ttft;         // from the request's last byte to its first token
  Histogram& e2e;          // of generations that ended by themselves
  Counter& stream_errors;  // generations that failed after the head was sent
  Counter& slow_readers;   // clients dropped because they did not read

 private:
  MetricsRegistry& registry_;
};

}  // namespace tessera::server
