// ApiError: a failure as an HTTP client sees it, and its OpenAI body.
//
//   {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
//
// `retry_after_s` marks what may work later; SDKs retry 429 and 5xx by themselves, so that a fault
// that will not go away says x-should-retry: false (see error_response).
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "server/http_message.h"
#include "server/json_body.h"

namespace tessera::server {

struct ApiError {
  int status = 500;
  std::string type = "server_error";
  std::string code;   // empty: null
  std::string param;  // empty: null
  std::string message;
  Json extra = Json::object();  // more members of the error object
  std::optional<int> retry_after_s;
};

ApiError bad_request(std::string message, std::string param = "");
ApiError unsupported_field(std::string param, std::string message);
ApiError unauthorized();
ApiError unknown_route(const std::string& path);
ApiError unknown_model(const std::string& name, const std::string& served);
ApiError wrong_method(const std::string& method, const std::string& path);
ApiError body_too_large(std::size_t limit);
ApiError context_overflow(std::size_t prompt_tokens, int context);
ApiError queue_full(const std::string& message);
ApiError unavailable(std::string message, std::string code);
ApiError not_implemented(const std::string& path);

// What an Error of another room means to a client.
ApiError from_error(const Error& error);

Json error_body(const ApiError& error);
HttpResponse error_response(const ApiError& error);

}  // namespace tessera::server
