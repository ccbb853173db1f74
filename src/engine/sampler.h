// SamplerState: what the choice of a sequence's next token depends on, besides its logits.
//
//   SamplerState state(params, seed);                      // one a sequence
//   for (TokenId id : prompt) state.record_prompt(id);
//   choices.push_back(state.choice(position, changes));    // for the shard with the head
//   state.record(chosen.id);
//
// The repetition penalty counts the last `repetition_window` tokens, prompt included; frequency and
// presence penalties count generated tokens. device/token_choice.h says what comes after what. A
// choice is pure in (state, position): draws are Philox numbers keyed by (seed, position).
#pragma once

#include <cstdint>
#include <vector>

#include "device/token_choice.h"
#include "engine/engine.h"
#include "engine/token_counts.h"

namespace tessera {

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
  // Whether choices depend on tokens before that were generated, and not on the position alone.
  bool looks_back() const { return has_repetition_penalty() || counts_generated(); }
  // How the token at `position` is to be chosen. Adds the changes of logits that come before.
  TokenChoice choice(std::uint64_t position, std::vector<LogitChange>& changes) const;

 private:
  bool counts_generated() const {
    return params_.frequency_penalty != 0.0f || params_.presence_penalty != 0.0f;
  }
  void remember(TokenId id);

  SamplingParams params_;
  std::uint64_t seed_;
  std::vector<TokenId> ring_;  // the last repetition_window tokens
  std::size_t oldest_ = 0;     // in ring_, once it is full
  TokenCounts window_;
  TokenCounts generated_;
};

}  // namespace tessera
