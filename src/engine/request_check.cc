#include "engine/request_check.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

constexpr int kMaxTopLogprobs = 100;

Status check_prompt(const GenerationRequest& request, const RequestBounds& bounds) {
  if (request.prompt.empty())
    return Error::make(ErrorCode::invalid, "the prompt is empty; it must have a token");
  const auto room = static_cast<std::size_t>(bounds.context) - (request.max_tokens == 0 ? 0 : 1);
  if (request.prompt.size() > room)
    return Error::make(ErrorCode::invalid,
                       "the prompt has {} tokens; with room for an answer the context of {} holds "
                       "at most {}",
                       request.prompt.size(), bounds.context, room);
  for (const TokenId id : request.prompt)
    if (id < 0 || id >= bounds.n_token)
      return Error::make(ErrorCode::invalid, "the prompt has token {}; ids go from 0 to {}", id,
                         bounds.n_token - 1);
  return {};
}

Status check_tokens(const GenerationRequest& request, const RequestBounds& bounds) {
  if (request.max_tokens < -1)
    return Error::make(ErrorCode::invalid,
                       "max_tokens is {}; it must not be negative, but for -1: up to the context",
                       request.max_tokens);
  if (request.top_logprobs < -1 || request.top_logprobs > kMaxTopLogprobs)
    return Error::make(ErrorCode::invalid, "top_logprobs is {}; it must be from -1 (none) to {}",
                       request.top_logprobs, kMaxTopLogprobs);
  for (const auto& [id, bias] : request.sampling.logit_bias)
    if (id >= bounds.n_token)
      return Error::make(ErrorCode::invalid, "logit_bias names token {}; ids go from 0 to {}", id,
                         bounds.n_token - 1);
  return {};
}

}  // namespace

Result<Submission> checked(GenerationRequest request, const RequestBounds& bounds) {
  TESSERA_TRY(validate(request.sampling));
  TESSERA_TRY(check_tokens(request, bounds));
  TESSERA_TRY(check_prompt(request, bounds));
  Submission submission;
  TESSERA_ASSIGN(submission.stops, text::StopMatcher::create(request.stop));
  const int room = bounds.context - static_cast<int>(request.prompt.size());
  submission.max_new = request.max_tokens < 0 ? room : std::min(request.max_tokens, room);
  submission.request = std::move(request);
  submission.submitted = EngineClock::now();
  return submission;
}

}  // namespace tessera
