// From a request's body to what the engine runs and how its answer will look: parse, render,
// tokenise, check against the context. Called on worker threads; touches nothing but its arguments.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/reply.h"

namespace tessera::server {

struct PrepareContext {
  const ServedModel& model;
  RequestLimits limits;
  int context = 0;          // most positions of a sequence
  int most_choices = 0;     // generations that the server can hold at once
  std::string fingerprint;  // for the reply
};

struct PreparedGeneration {
  std::vector<GenerationRequest> requests;  // one a choice
  std::unique_ptr<Reply> reply;
  Headers headers;  // x-clamped, x-ignored
};

using Prepared = std::variant<PreparedGeneration, ApiError>;

Prepared prepare_chat(std::string_view body, const PrepareContext& context);
Prepared prepare_completion(std::string_view body, const PrepareContext& context);

// Renders and encodes a conversation.
std::variant<std::vector<PromptSegment>, ApiError> render_prompt(const ChatPrompt& prompt,
                                                                 const ServedModel& model);

}  // namespace tessera::server
