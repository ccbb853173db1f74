// The table of routes. Each is reachable with and without the prefix /v1.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::server {

enum class RouteId {
  health,
  ready,
  metrics,
  props,
  models,
  model,
  chat,
  completions,
  tokenize,
  detokenize,
  apply_template,
  not_supported,  // a known API that this build does not have
};

struct Route {
  RouteId id;
  std::string_view path;     // as shown in metrics
  std::string_view methods;  // for Allow, e.g. "GET, HEAD, OPTIONS"
  bool needs_model;          // 503 before the model is ready and while draining
  bool open;                 // no API key
};

struct RouteMatch {
  const Route* route;
  std::string argument;  // the model's name, percent-decoded, for RouteId::model
};

// `path` without query and trailing slash.
std::optional<RouteMatch> find_route(std::string_view path);
bool allows(const Route& route, std::string_view method);

}  // namespace tessera::server
