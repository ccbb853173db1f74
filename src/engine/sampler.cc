#include "engine/sampler.h"

#include <utility>

#include "engine/philox.h"

namespace tessera {

SamplerState::SamplerState(SamplingParams params, std::uint64_t seed)
    : params_(std::move(params)), seed_(seed) {}

TokenChoice SamplerState::choice(std::uint64_t position, std::vector<LogitChange>& changes) const {
  const std::size_t before = changes.size();
  for (const auto& [id, bias] : params_.logit_bias) changes.push_back({.id = id, .bias = bias});
  for (const TokenCounts::Entry& entry : window_.entries())
    changes.push_back({.id = entry.id, .penalty = params_.repetition_penalty});
  for (const TokenCounts::Entry& entry : generated_.entries())
    changes.push_back({.id = entry.id,
                       .less = static_cast<float>(entry.count) * params_.frequency_penalty +
                               params_.presence_penalty});
  return {
      .temperature = params_.temperature,
      .top_k = params_.top_k,
      .top_p = params_.top_p,
      .min_p = params_.min_p,
      .uniform = params_.temperature == 0.0f ? 0.0 : uniform({.seed = seed_, .position = position}),
      .n_changes = static_cast<int>(changes.size() - before)};
}

void SamplerState::remember(TokenId id) {
  if (!has_repetition_penalty()) return;
  window_.add(id);
  if (ring_.size() < static_cast<std::size_t>(params_.repetition_window)) {
    ring_.push_back(id);
    return;
  }
  window_.remove(std::exchange(ring_[oldest_], id));
  oldest_ = (oldest_ + 1) % ring_.size();
}

void SamplerState::record(TokenId id) {
  remember(id);
  if (counts_generated()) generated_.add(id);
}

}  // namespace tessera
