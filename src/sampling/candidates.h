// Choosing the few tokens that a draw is made among, without sorting the vocabulary.
#pragma once

#include <span>
#include <vector>

#include "sampling/choose.h"

namespace tessera {

// Higher logit first, lower id first among equals.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The k first in rank among `tokens` with a logit above minus infinity, in no particular order;
// fewer when there are not so many. Weights are not set.
void gather_top_k(std::span<const float> logits, const SampleableTokens& tokens, std::size_t k,
                  std::vector<Candidate>& candidates);

// All of weight >= least and > 0, in id order.
void gather_weighty(std::span<const float> logits, std::span<const float> weights,
                    const SampleableTokens& tokens, float least,
                    std::vector<Candidate>& candidates);

// Cuts the list to its shortest prefix in rank whose weights reach `mass`; at least one stays.
void keep_nucleus(std::vector<Candidate>& candidates, double mass);

}  // namespace tessera
