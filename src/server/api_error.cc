#include "server/api_error.h"

namespace tessera::server {

ApiError bad_request(std::string message, std::string param) {
  return {.status = 400,
          .type = "invalid_request_error",
          .param = std::move(param),
          .message = std::move(message)};
}

ApiError unsupported_field(std::string param, std::string message) {
  ApiError error = bad_request(std::move(message), std::move(param));
  error.code = "unsupported_parameter";
  return error;
}

ApiError unauthorized() {
  return {
      .status = 401,
      .type = "authentication_error",
      .code = "invalid_api_key",
      .message = "a valid API key is required, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"};
}

ApiError unknown_route(const std::string& path) {
  return {.status = 404,
          .type = "not_found_error",
          .message = fmt::format("there is no route {}", path)};
}

ApiError unknown_model(const std::string& name, const std::string& served) {
  return {.status = 404,
          .type = "not_found_error",
          .code = "model_not_found",
          .param = "model",
          .message = fmt::format("there is no model '{}'; this server serves '{}'", name, served)};
}

ApiError wrong_method(const std::string& method, const std::string& path) {
  return {.status = 405,
          .type = "invalid_request_error",
          .code = "method_not_allowed",
          .message = fmt::format("{} is not allowed on {}; see the Allow header", method, path)};
}

ApiError body_too_large(std::size_t limit) {
  return {.status = 413,
          .type = "invalid_request_error",
          .code = "request_too_large",
          .message = fmt::format("the request body is larger than {} bytes", limit)};
}

ApiError context_overflow(std::size_t prompt_tokens, int context) {
  return {
      .status = 400,
      .type = "invalid_request_error",
      .code = "context_length_exceeded",
      .param = "messages",
      .message = fmt::format("context_length_exceeded: this model's maximum context length is {} "
                             "tokens, but the prompt has {} tokens and needs room for at least "
                             "one more; shorten the prompt",
                             context, prompt_tokens),
      .extra = {{"n_prompt_tokens", prompt_tokens}, {"n_ctx", context}}};
}

ApiError queue_full(const std::string& message) {
  return {.status = 429,
          .type = "rate_limit_error",
          .code = "queue_full",
          .message = message,
          .retry_after_s = 1};
}

ApiError unavailable(std::string message, std::string code) {
  return {.status = 503,
          .type = "unavailable_error",
          .code = std::move(code),
          .message = std::move(message),
          .retry_after_s = 5};
}

ApiError not_implemented(const std::string& path) {
  return {.status = 501,
          .type = "not_supported_error",
          .code = "not_supported",
          .message = fmt::format("{} is not supported by this build", path)};
}

ApiError from_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::invalid:
    case ErrorCode::unsupported:
    case ErrorCode::not_found:
      return bad_request(error.message);
    case ErrorCode::exhausted:
      return queue_full(error.message);
    case ErrorCode::unavailable:
    case ErrorCode::cancelled:
      return unavailable(error.message, "unavailable");
    case ErrorCode::io:
    case ErrorCode::internal:
      break;
  }
  return {.message = error.message};
}

Json error_body(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json() : Json(text);
  };
  Json inner = {{"message", error.message},
                {"type", error.type},
                {"param", text_or_null(error.param)},
                {"code", text_or_null(error.code)}};
  inner.update(error.extra);
  return Json::object({{"error", std::move(inner)}});
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status};
  if (error.retry_after_s) {
    response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after_s));
  } else if (error.status >= 500) {
    response.headers.emplace_back("x-should-retry", "false");
  }
  response.headers.emplace_back("Content-Type", "application/json");
  response.body = dump_json(error_body(error));
  return response;
}

}  // namespace tessera::server
