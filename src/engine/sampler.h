// Sampling: from one row of logits to one token.
//
//   SampleableTokens tokens(spec.n_token, never_sampled);        // once a model
//   SamplerScratch scratch(spec.n_vocab);                        // one a thread
//   SamplerState state(params, seed);                            // one a sequence
//   for (TokenId id : prompt) state.record_prompt(id);
//   TESSERA_ASSIGN(TokenId id, sample(logits, tokens, state, position, scratch));
//   state.record(id);
//
// Order: logit bias; repetition penalty (a positive logit is divided by it, a negative one
// multiplied) over the last `repetition_window` tokens, prompt included; frequency and presence
// penalties over generated tokens; at temperature 0 the largest logit, lowest id on ties; else
// division by the temperature, top-k, top-p of what is left, min-p relative to the largest
// probability, one draw. Top-k and top-p keep the lower id of equal logits.
//
// sample() and score() are pure in (logits, state, position): nothing depends on other rows or on
// what the scratch was used for. A NaN logit counts as minus infinity. Errors (internal): no
// finite logit, or an infinite one. After the first call with a scratch nothing is allocated
// except for top lists. Different scratches may be used on different threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/token_counts.h"

namespace tessera {

// The ids that may be sampled, as runs: scans stay straight loops.
class SampleableTokens {
 public:
  struct Run {
    std::size_t begin;
    std::size_t end;
  };
  SampleableTokens(int n_token, const std::function<bool(TokenId)>& never_sampled);
  std::span<const Run> runs() const { return runs_; }
  bool empty() const { return runs_.empty(); }

 private:
  std::vector<Run> runs_;
};

class SamplerState {
 public:
  SamplerState(SamplingParams params, std::uint64_t seed);

  void record_prompt(TokenId id) { remember(id); }
  void record(TokenId id);

  const SamplingParams& params() const { return params_; }
  std::uint64_t seed() const { return seed_; }
  bool has_repetition_penalty() const {
    return params_.repetition_penalty != 1.0f && params_.repetition_window > 0;
  }
  // True when a logit may change before the choice.
  bool adjusts_logits() const;
  std::span<const TokenCounts::Entry> window_counts() const { return window_.entries(); }
  std::span<const TokenCounts::Entry> generated_counts() const { return generated_.entries(); }

 private:
  void remember(TokenId id);

  SamplingParams params_;
  std::uint64_t seed_;
  std::vector<TokenId> ring_;  // the last repetition_window tokens
  std::size_t oldest_ = 0;     // in ring_, once it is full
  TokenCounts window_;
  TokenCounts generated_;
};

struct Candidate {
  float logit;
  float weight;  // probability relative to the largest
  TokenId id;
};

// Working memory of one thread.
struct SamplerScratch {
  explicit SamplerScratch(int n_vocab);
  std::vector<float> adjusted;
  std::vector<float> weights;
  std::vector<Candidate> candidates;
};

// `position` is that of the token to come.
Result<TokenId> sample(std::span<const float> logits, const SampleableTokens& tokens,
                       const SamplerState& state, std::uint64_t position, SamplerScratch& scratch);

struct ScoredToken {
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;  // best first
};

// What is wanted of a row: a token, and the n_top most probable sampleable ones.
struct Scoring {
  TokenId id = 0;
  int n_top = 0;
};
// log softmax of the raw logits over the whole row.
Result<ScoredToken> score(std::span<const float> logits, const SampleableTokens& tokens,
                          const Scoring& wanted, SamplerScratch& scratch);

}  // namespace tessera
