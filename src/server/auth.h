// API keys and cross-origin rules.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace tessera::server {

// True when no key is configured, or the request carries one of them as a Bearer token or
// x-api-key. The time does not depend on how much of a key is right.
bool is_authorized(const HttpRequest& request, const std::vector<std::string>& keys);

// The headers that let the request's origin read the answer; none when it is not on the list ("*":
// all).
Headers cors_headers(const HttpRequest& request, const std::vector<std::string>& origins);

// The answer to OPTIONS: 204, with what is allowed if the origin is.
HttpResponse preflight_response(const HttpRequest& request, std::string_view methods,
                                const std::vector<std::string>& origins);

}  // namespace tessera::server
