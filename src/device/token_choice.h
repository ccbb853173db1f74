// How the token after a row is chosen, and what was chosen: what a batch says of its logit rows so
// that the shard with the head chooses (choose.h) and no logits leave it. Plain values, which cross
// to another process as they are.
//
// Order: bias; penalty (a positive logit is divided by it, a negative one multiplied); less; at
// temperature 0 the largest logit, lowest id on ties; else division by the temperature, top-k,
// top-p of what is left, min-p relative to the largest probability, one draw. Top-k and top-p keep
// the lower id of equal logits.
#pragma once

#include <span>
#include <vector>

#include "model/spec.h"

namespace tessera {

// Before the choice: logit + bias, by the penalty, minus less. An id may come more than once.
struct LogitChange {
  TokenId id = 0;
  float bias = 0.0f;
  float penalty = 1.0f;  // above 0
  float less = 0.0f;
  bool operator==(const LogitChange&) const = default;
};

inline constexpr TokenId kNoToken = -1;
inline constexpr TokenId kNotChosen = -2;  // left to somebody else

struct TokenChoice {
  TokenId given = kNoToken;  // a token that is known and only scored
  float temperature = 0.0f;
  int top_k = 0;  // 0 or less: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  double uniform = 0.0;  // the draw's number in [0, 1)
  // -1: no log probability is wanted; else the token's, and the n_top most probable beside it.
  int n_top = -1;
  int n_changes = 0;  // its share of TokenChoices::changes
  bool operator==(const TokenChoice&) const = default;
};

// Of the rows of a batch, in their order; the changes of the first row come first.
struct TokenChoices {
  std::span<const TokenChoice> rows;
  std::span<const LogitChange> changes;
  bool empty() const { return rows.empty(); }
};

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0.0f;  // of the raw logits, before changes and filters
};

struct ChosenToken {
  TokenId id = kNoToken;  // kNoToken: no logit of the row is finite, or one is infinite
  float largest = 0.0f;   // then: the largest
  float logprob = 0.0f;   // where wanted
  std::vector<TokenLogprob> top;
};

}  // namespace tessera
