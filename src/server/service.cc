#include "server/service.h"

#include "server/auth.h"
#include "server/model_routes.h"
#include "server/text_routes.h"

namespace tessera::server {
namespace {

// An exchange whose answer one worker task computes.
class WorkExchange : public Exchange, public std::enable_shared_from_this<WorkExchange> {
 public:
  explicit WorkExchange(ResponseWriter& writer) : writer_(&writer) {}

  void start(const Executors& executors, std::function<HttpResponse()> work) {
    executors.worker([self = weak_from_this(), io = executors.io, work = std::move(work)] {
      if (self.expired()) return;
      auto response = std::make_shared<HttpResponse>(work());
      io([self, response] {
        const auto exchange = self.lock();
        if (!exchange || !exchange->writer_) return;
        std::exchange(exchange->writer_, nullptr)->send(std::move(*response));
      });
    });
  }
  void disconnected() override { writer_ = nullptr; }
  void shut_down() override {
    if (!writer_) return;
    std::exchange(writer_, nullptr)
        ->send(error_response(unavailable("the server is shutting down", "draining")));
  }

 private:
  ResponseWriter* writer_;
};

HttpResponse unavailable_health(const Json& body, bool later = true) {
  HttpResponse response = json_response(body, 503);
  if (later) response.headers.emplace_back("Retry-After", "5");
  return response;
}

HttpResponse unavailable_health(const char* status) {
  return unavailable_health(Json{{"status", status}});
}

// While something is away and not needed, something else does its work.
const char* health_name(const EngineStatus& status) {
  if (!status.healthy || status.absence == Absence::failed) return "error";
  if (status.recovering) return "recovering";
  return status.away.empty() ? "ok" : "degraded";
}

}  // namespace

Service::Service(const ServerOptions& options, Executors executors, MetricsRegistry& registry)
    : options_(options), executors_(std::move(executors)), metrics_(registry) {}

void Service::set_ready(std::shared_ptr<const ServedModel> model, Engine& engine) {
  model_ = std::move(model);
  engine_ = &engine;
}

Headers Service::common_headers(const HttpRequest& request) const {
  Headers headers = {{"x-request-id", request.id}, {"x-server-version", options_.version}};
  const Headers cors = cors_headers(request, options_.cors_origins);
  headers.insert(headers.end(), cors.begin(), cors.end());
  return headers;
}

void Service::count(const HttpRequest& request, int status) {
  const auto match = find_route(request.path);
  metrics_.count_request(match ? match->route->path : "other", status);
}

std::optional<HttpResponse> Service::check_head(const HttpRequest& request) {
  const auto match = find_route(request.path);
  if (request.method == "OPTIONS") {
    return preflight_response(request, match ? match->route->methods : "OPTIONS",
                              options_.cors_origins);
  }
  const bool open = match && match->route->open &&
                    !(match->route->id == RouteId::metrics && options_.metrics_need_key);
  if (!open && !is_authorized(request, options_.api_keys)) {
    HttpResponse response = error_response(unauthorized());
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (!match) return error_response(unknown_route(request.path));
  const Route& route = *match->route;
  if (!allows(route, request.method)) {
    HttpResponse response = error_response(wrong_method(request.method, request.path));
    response.headers.emplace_back("Allow", route.methods);
    return response;
  }
  if (route.id == RouteId::not_supported) return error_response(not_implemented(request.path));
  if (route.needs_model && draining_) {
    return error_response(unavailable("the server is shutting down", "draining"));
  }
  if (route.needs_model && !model_) {
    return error_response(unavailable("the model is still loading", "loading"));
  }
  return {};
}

HttpResponse Service::health() const {
  if (draining_) return unavailable_health("draining");
  if (!model_) return unavailable_health("loading");
  const EngineStatus status = engine_->status();
  Json body = {{"status", health_name(status)}};
  if (!status.fault.empty()) body["fault"] = status.fault;
  if (!status.away.empty()) body["away"] = status.away;
  if (!status.healthy || status.recovering)
    return unavailable_health(body, status.absence != Absence::failed && status.healthy);
  return json_response(body);
}

HttpResponse Service::ready() const {
  HttpResponse response = health();
  if (response.status != 200) return response;
  const EngineStatus status = engine_->status();
  if (status.queued >= status.max_queue && status.running >= status.parallel) {
    return unavailable_health("busy");
  }
  return json_response({{"status", "ready"}});
}

HttpResponse Service::metrics_page() {
  if (engine_) {
    const EngineStatus status = engine_->status();
    metrics_.running.set(status.running);
    metrics_.queued.set(status.queued);
  }
  return {.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
          .body = metrics_.render()};
}

HttpResponse Service::answer_now(const RouteMatch& match) {
  switch (match.route->id) {
    case RouteId::health:
      return health();
    case RouteId::ready:
      return ready();
    case RouteId::metrics:
      return metrics_page();
    case RouteId::props:
      return json_response(props_json(*model_, engine_->status(), options_));
    case RouteId::models:
      return json_response(models_json(*model_, engine_->status().context));
    case RouteId::model:
      if (match.argument != model_->id) {
        return error_response(unknown_model(match.argument, model_->id));
      }
      return json_response(model_json(*model_, engine_->status().context));
    default:
      return error_response({.message = "a route without an answer"});
  }
}

std::shared_ptr<Exchange> Service::handle(HttpRequest request, ResponseWriter& writer) {
  const auto match = find_route(request.path);
  // check_head() let the request through, but the state may have changed while its body came.
  if (auto refusal = check_head(request)) {
    writer.send(*std::move(refusal));
    return nullptr;
  }
  switch (match->route->id) {
    case RouteId::chat:
      return generate(GenerationKind::chat, std::move(request), writer);
    case RouteId::completions:
      return generate(GenerationKind::completion, std::move(request), writer);
    case RouteId::tokenize:
    case RouteId::detokenize:
    case RouteId::apply_template:
      return convert(match->route->id, std::move(request), writer);
    default:
      writer.send(answer_now(*match));
      return nullptr;
  }
}

std::shared_ptr<Exchange> Service::generate(GenerationKind kind, HttpRequest request,
                                            ResponseWriter& writer) {
  auto exchange = std::make_shared<GenerationExchange>(
      GenerationExchange::Setup{.model = model_,
                                .engine = *engine_,
                                .executors = executors_,
                                .metrics = metrics_,
                                .limits = options_.requests,
                                .fingerprint = "tessera-" + options_.version},
      writer);
  exchange->start(kind, std::move(request.body));
  return exchange;
}

std::shared_ptr<Exchange> Service::convert(RouteId id, HttpRequest request,
                                           ResponseWriter& writer) {
  auto exchange = std::make_shared<WorkExchange>(writer);
  exchange->start(executors_,
                  [id, model = model_, limits = options_.requests,
                   context = engine_->status().context, body = std::move(request.body)] {
                    const PrepareContext prepare{*model, limits, context, 0, ""};
                    if (id == RouteId::tokenize) return answer_tokenize(body, prepare);
                    if (id == RouteId::detokenize) return answer_detokenize(body, prepare);
                    return answer_apply_template(body, prepare);
                  });
  return exchange;
}

}  // namespace tessera::server
