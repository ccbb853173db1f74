#include "server/server_metrics.h"

namespace tessera::server {
namespace {

const std::vector<double> kRequestBounds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   2.5,
                                            5,    10,    30,   60,  120,  300, 600, 1800};
}  // namespace

ServerMetrics::ServerMetrics(MetricsRegistry& registry)
    : connections(registry.gauge("tessera_http_connections", "Open client connections.")),
      running(registry.gauge("tessera_requests_running", "Sequences in the running batch.")),
      queued(registry.gauge("tessera_requests_queued", "Sequences that wait for a slot.")),
      ttft(registry.histogram("tessera_http_ttft_seconds",
                              "Time from a request's last byte to its first token.",
                              kRequestBounds)),
      e2e(registry.histogram("tessera_e2e_seconds",
                             "Time from a request's last byte to the end of its generation.",
                             kRequestBounds)),
      stream_errors(registry.counter("tessera_stream_errors_total",
                                     "Generations that failed after their head was sent.")),
      slow_readers(registry.counter("tessera_slow_readers_total",
                                    "Clients dropped because they did not read.")),
      registry_(registry) {}

void ServerMetrics::count_request(std::string_view route, int status) {
  registry_
      .counter("tessera_requests_total",
               "Requests by route and status; 499: the client went away before the answer.",
               {{"route", std::string(route)}, {"status", std::to_string(status)}})
      .add();
}

void ServerMetrics::count_cancelled(std::string_view phase) {
  registry_
      .counter("tessera_cancelled_total", "Generations whose client went away, by phase.",
               {{"phase", std::string(phase)}})
      .add();
}

}  // namespace tessera::server
