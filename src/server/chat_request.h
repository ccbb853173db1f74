// The body of POST /v1/chat/completions.
#pragma once

#include <variant>

#include "server/generation_fields.h"

namespace tessera::server {

struct ChatRequest {
  ChatPrompt prompt;
  GenerationFields generation;
  int top_logprobs = -1;  // -1: none
};

std::variant<ChatRequest, ApiError> parse_chat_request(const Json& body, const ServedModel& model,
                                                       const RequestLimits& limits);

// The part that is rendered: also the body of POST /apply-template.
ChatPrompt read_chat_prompt(FieldReader& fields, const RequestLimits& limits);

}  // namespace tessera::server
