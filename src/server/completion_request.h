// The body of POST /v1/completions.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "server/generation_fields.h"

namespace tessera::server {

using RawPrompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  std::vector<RawPrompt> prompts;  // at least one
  GenerationFields generation;
  bool echo = false;
  int logprobs = -1;  // -1: none
};

std::variant<CompletionRequest, ApiError> parse_completion_request(const Json& body,
                                                                   const ServedModel& model,
                                                                   const RequestLimits& limits);

// A list of token ids, each in the vocabulary; failures are left in `fields` under `name`.
std::vector<TokenId> read_token_ids(FieldReader& fields, const std::string& name, const Json& list,
                                    int vocabulary);

}  // namespace tessera::server
