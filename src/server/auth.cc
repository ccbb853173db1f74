#include "server/auth.h"

#include <algorithm>

namespace tessera::server {
namespace {

bool equal_in_constant_time(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0u : 1u;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected);
  }
  return difference == 0;
}

std::string_view bearer_token(std::string_view value) {
  constexpr std::string_view kScheme = "bearer ";
  if (value.size() < kScheme.size()) return {};
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    const char c = value[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != kScheme[i]) return {};
  }
  value.remove_prefix(kScheme.size());
  while (value.starts_with(' ')) value.remove_prefix(1);
  return value;
}

bool is_allowed(std::string_view origin, const std::vector<std::string>& origins) {
  return !origin.empty() &&
         std::any_of(origins.begin(), origins.end(),
                     [&](const std::string& one) { return one == "*" || one == origin; });
}

// A header that the preflight may allow: what SDKs send.
bool is_allowed_header(std::string_view name) {
  return name == "authorization" || name == "content-type" || name == "x-api-key" ||
         name == "x-request-id" || name.starts_with("anthropic-") ||
         name.starts_with("x-stainless-") || name.starts_with("openai-");
}

// The allowed ones of "a, b, c".
std::string filter_headers(std::string_view list) {
  std::string out;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string name(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
    std::erase(name, ' ');
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (is_allowed_header(name)) out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

}  // namespace

bool is_authorized(const HttpRequest& request, const std::vector<std::string>& keys) {
  if (keys.empty()) return true;
  const std::string_view bearer = bearer_token(request.header("authorization"));
  const std::string_view plain = request.header("x-api-key");
  bool found = false;
  for (const std::string& key : keys) {
    // Both are compared, whatever the first one gives.
    const bool by_bearer = equal_in_constant_time(bearer, key);
    const bool by_plain = equal_in_constant_time(plain, key);
    if (!key.empty() && (by_bearer || by_plain)) found = true;
  }
  return found;
}

Headers cors_headers(const HttpRequest& request, const std::vector<std::string>& origins) {
  if (origins.empty()) return {};
  Headers headers = {{"Vary", "Origin"}};
  const std::string_view origin = request.header("origin");
  if (is_allowed(origin, origins)) {
    headers.emplace_back("Access-Control-Allow-Origin", origin);
    headers.emplace_back("Access-Control-Expose-Headers",
                         "x-request-id, x-server-version, x-clamped, x-ignored, Retry-After");
  }
  return headers;
}

HttpResponse preflight_response(const HttpRequest& request, std::string_view methods,
                                const std::vector<std::string>& origins) {
  HttpResponse response{.status = 204, .headers = {{"Allow", std::string(methods)}}};
  if (is_allowed(request.header("origin"), origins)) {
    response.headers.emplace_back("Access-Control-Allow-Methods", methods);
    const std::string allowed = filter_headers(request.header("access-control-request-headers"));
    if (!allowed.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", allowed);
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return response;
}

}  // namespace tessera::server
