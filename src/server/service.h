// Service: from a request to its answer. Owns what requests share; knows nothing of sockets. I/O
// thread only, but for the constructor.
#pragma once

#include <memory>
#include <optional>

#include "server/executors.h"
#include "server/generation_exchange.h"
#include "server/options.h"
#include "server/routes.h"
#include "server/server_metrics.h"

namespace tessera::server {

class Service {
 public:
  Service(const ServerOptions& options, Executors executors, MetricsRegistry& registry);

  void set_ready(std::shared_ptr<const ServedModel> model, Engine& engine);
  void set_draining() { draining_ = true; }
  bool draining() const { return draining_; }

  // What can be answered from the head alone: refusals, preflights, and 503 while loading or
  // draining.
  std::optional<HttpResponse> check_head(const HttpRequest& request);

  // Answers through `writer`, at once (null comes back) or later (the exchange).
  std::shared_ptr<Exchange> handle(HttpRequest request, ResponseWriter& writer);

  // Headers of every answer to the request.
  Headers common_headers(const HttpRequest& request) const;

  void count(const HttpRequest& request, int status);
  ServerMetrics& metrics() { return metrics_; }

 private:
  HttpResponse health() const;
  HttpResponse ready() const;
  HttpResponse metrics_page();
  HttpResponse answer_now(const RouteMatch& match);
  std::shared_ptr<Exchange> generate(GenerationKind kind, HttpRequest request,
                                     ResponseWriter& writer);
  std::shared_ptr<Exchange> convert(RouteId id, HttpRequest request, ResponseWriter& writer);

  const ServerOptions& options_;
  Executors executors_;
  ServerMetrics metrics_;
  std::shared_ptr<const ServedModel> model_;
  Engine* engine_ = nullptr;
  bool draining_ = false;
};

}  // namespace tessera::server
