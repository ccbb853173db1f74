#include "server/routes.h"

#include <array>

namespace tessera::server {
namespace {

constexpr std::string_view kGet = "GET, HEAD, OPTIONS";
constexpr std::string_view kPost = "POST, OPTIONS";
constexpr std::string_view kAny = "GET, HEAD, POST, OPTIONS";

constexpr std::array kRoutes = {
    Route{RouteId::health, "/health", kGet, false, true},
    Route{RouteId::ready, "/ready", kGet, false, true},
    Route{RouteId::metrics, "/metrics", kGet, false, true},
    Route{RouteId::props, "/props", kGet, true, false},
    Route{RouteId::models, "/v1/models", kGet, true, false},
    Route{RouteId::model, "/v1/models/{id}", kGet, true, false},
    Route{RouteId::chat, "/v1/chat/completions", kPost, true, false},
    Route{RouteId::completions, "/v1/completions", kPost, true, false},
    Route{RouteId::tokenize, "/tokenize", kPost, true, false},
    Route{RouteId::detokenize, "/detokenize", kPost, true, false},
    Route{RouteId::apply_template, "/apply-template", kPost, true, false},
    Route{RouteId::not_supported, "/v1/responses", kAny, false, false},
    Route{RouteId::not_supported, "/v1/responses/input_tokens", kAny, false, false},
    Route{RouteId::not_supported, "/v1/chat/completions/input_tokens", kAny, false, false},
    Route{RouteId::not_supported, "/v1/messages", kAny, false, false},
    Route{RouteId::not_supported, "/v1/messages/count_tokens", kAny, false, false},
    Route{RouteId::not_supported, "/v1/embeddings", kAny, false, false},
    Route{RouteId::not_supported, "/rerank", kAny, false, false},
};

constexpr std::string_view kPrefix = "/v1";
constexpr std::string_view kModelPrefix = "/models/";

std::string_view without_prefix(std::string_view path) {
  const bool prefixed =
      path.starts_with(kPrefix) && path.size() > kPrefix.size() && path[kPrefix.size()] == '/';
  return prefixed ? path.substr(kPrefix.size()) : path;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high >= 0 && low >= 0) {
        out += static_cast<char>(high * 16 + low);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

}  // namespace

std::optional<RouteMatch> find_route(std::string_view path) {
  const std::string_view bare = without_prefix(path);
  for (const Route& route : kRoutes) {
    if (route.id == RouteId::model && bare.starts_with(kModelPrefix)) {
      return RouteMatch{&route, percent_decoded(bare.substr(kModelPrefix.size()))};
    }
    if (without_prefix(route.path) == bare) return RouteMatch{&route, ""};
  }
  return {};
}

bool allows(const Route& route, std::string_view method) {
  std::string_view rest = route.methods;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(", ");
    if (rest.substr(0, comma) == method) return true;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 2);
  }
  return false;
}

}  // namespace tessera::server
