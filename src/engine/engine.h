// Engine: requests in, tokens and text out. The server and the command line know nothing below it.
//
//   TESSERA_ASSIGN(RequestId id, engine.submit(std::move(request), sink));
//   engine.cancel(id);
//
// submit() and cancel() may be called from any thread, also from a sink. The sink runs on the
// engine's thread, in order, and must return quickly (post to your own queue) and not throw; it
// gets any number of events with `tokens` and `text` and then exactly one with `finish` or `error`,
// which may carry the last tokens and text as well. After submit() failed it is never called.
// cancel() of an unknown or ended request does nothing.
//
// Errors of submit(): invalid (a parameter, or a prompt that leaves no room in the context),
// exhausted (the queue is full: HTTP 429), unavailable (stopping, dead after a fatal error, or
// without a part of the model that a lost worker held, until it is back).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "device/token_choice.h"
#include "experts/expert_use.h"
#include "model/spec.h"
#include "pipeline/absence.h"

namespace tessera {

// Order of application: logit bias, repetition penalty (last `repetition_window` tokens, prompt
// included), frequency and presence penalties (generated tokens only), then argmax when temperature
// is 0, else temperature, top-k, top-p, min-p (relative to the largest probability), draw. Draws
// are Philox numbers keyed by (seed, position), so they do not depend on what else runs.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy, lowest id wins ties
  int top_k = 0;             // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  int repetition_window = 256;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::optional<std::uint64_t> seed = std::nullopt;  // absent: random, and reported in Usage
  std::vector<std::pair<TokenId, float>> logit_bias = {};
};

// One line naming the field, the value and the range.
Status validate(const SamplingParams& params);

struct GenerationRequest {
  std::vector<TokenId> prompt;
  int max_tokens = -1;  // -1 or more than fits: up to the context; ends with FinishReason::length
  SamplingParams sampling;
  std::vector<std::string> stop;  // at most 16
  bool ignore_eos = false;
  bool show_special = false;     // control tokens appear in the text
  int top_logprobs = -1;         // -1: none; 0: the chosen token's; n: the n best beside it
  bool prompt_logprobs = false;  // also for the prompt's tokens (from the second on)
};

struct EmittedToken {
  TokenId id = 0;
  float logprob = 0.0f;  // of the raw logits, before bias, penalties and filters
  std::vector<TokenLogprob> top;
  std::string piece;  // the token's own bytes; may be part of a character
};

enum class FinishReason { stop, length, cancelled };
const char* finish_name(FinishReason reason);  // "stop", "length", "cancelled"

struct Usage {
  int prompt_tokens = 0;
  int generated_tokens = 0;  // the end-of-generation token counts
  double queue_s = 0.0;
  double prompt_s = 0.0;
  double generate_s = 0.0;
  std::uint64_t seed = 0;
  // Its share of the steps that it took part in; absent where the model has no experts away.
  std::optional<ExpertUse> experts = std::nullopt;
};

struct Finish {
  FinishReason reason = FinishReason::stop;
  std::string stop_string;            // the one that matched, if one did
  std::optional<TokenId> stop_token;  // the end-of-generation token, if one came
  Usage usage;
};

struct GenerationEvent {
  std::vector<EmittedToken> prompt_tokens;  // once, when prompt_logprobs was asked
  std::vector<EmittedToken> tokens;  // sampled since the last event (no end-of-generation token)
  std::string text;  // text that may be shown now: whole characters, no part of a stop string
  std::optional<Finish> finish;
  std::optional<Error> error;
  Absence absence = Absence::none;  // the error's reason, where a part of the model was away
};

using EventSink = std::function<void(GenerationEvent)>;
using RequestId = std::uint64_t;

struct EngineStatus {
  bool healthy = true;              // false after a fatal error
  bool recovering = false;          // a part of the model is away
  Absence absence = Absence::none;  // of that part
  std::string fault;                // why not, what is away
  // A line for each part that is away; unless recovering, the rest stands in for it.
  std::vector<std::string> away{};
  int running = 0;
  int queued = 0;
  int max_queue = 0;
  int parallel = 0;
  int context = 0;  // most positions of one sequence
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual Result<RequestId> submit(GenerationRequest request, EventSink sink) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual EngineStatus status() const = 0;
  // Refuses new requests from now on, lets those it has end for at most `grace_s`, then cancels
  // them. Returns when idle.
  virtual void drain(double grace_s) = 0;
};

}  // namespace tessera
