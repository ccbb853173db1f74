#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/candidates.h"
#include "engine/logit_kernels.h"
#include "engine/philox.h"

namespace tessera {
namespace {

constexpr std::size_t kBlock = 256;

Result<float> finite_max(std::span<const float> logits, const SampleableTokens& tokens) {
  float best = -std::numeric_limits<float>::infinity();
  for (const SampleableTokens::Run& run : tokens.runs())
    best = std::max(best, logit_kernels().max(logits.data() + run.begin, run.end - run.begin));
  if (!std::isfinite(best))
    return Error::make(ErrorCode::internal,
                       "the model's logits are not numbers to choose from: the largest is {}",
                       best);
  return best;
}

TokenId first_equal(std::span<const float> logits, const SampleableTokens& tokens, float value) {
  for (const SampleableTokens::Run& run : tokens.runs())
    for (std::size_t id = run.begin; id < run.end; ++id)
      if (logits[id] == value) return static_cast<TokenId>(id);
  CHECK(false, "{} is the largest logit of no token", value);
}

// The logits after bias and penalties: the row itself when there are none.
std::span<const float> adjust(std::span<const float> logits, const SamplerState& state,
                              SamplerScratch& scratch) {
  if (!state.adjusts_logits()) return logits;
  const SamplingParams& params = state.params();
  scratch.adjusted.assign(logits.begin(), logits.end());
  const auto at = [&](TokenId id) -> float& {
    return scratch.adjusted[static_cast<std::size_t>(id)];
  };
  for (const auto& [id, bias] : params.logit_bias) at(id) += bias;
  for (const TokenCounts::Entry& entry : state.window_counts()) {
    float& logit = at(entry.id);
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  }
  for (const TokenCounts::Entry& entry : state.generated_counts())
    at(entry.id) -=
        static_cast<float>(entry.count) * params.frequency_penalty + params.presence_penalty;
  return scratch.adjusted;
}

// The first of `items` at which the running sum of weights passes `target`; the last with any
// weight when rounding keeps the sum below it.
template <typename Items, typename Weight>
std::size_t index_at(const Items& items, double target, Weight weight) {
  double sum = 0.0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto w = static_cast<double>(weight(items[i]));
    if (!(w > 0.0)) continue;
    last = i;
    sum += w;
    if (sum > target) break;
  }
  return last;
}

TokenId draw_candidate(std::span<const Candidate> candidates, double uniform) {
  const auto weight = [](const Candidate& candidate) { return candidate.weight; };
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += static_cast<double>(candidate.weight);
  return candidates[index_at(candidates, uniform * total, weight)].id;
}

void weigh_all(std::span<const float> logits, const SampleableTokens& tokens, float max,
               float temperature, SamplerScratch& scratch) {
  std::size_t done = 0;
  for (const SampleableTokens::Run& run : tokens.runs()) {
    std::fill(scratch.weights.begin() + static_cast<std::ptrdiff_t>(done),
              scratch.weights.begin() + static_cast<std::ptrdiff_t>(run.begin), 0.0f);
    logit_kernels().weigh(logits.data() + run.begin, run.end - run.begin, max, temperature,
                          scratch.weights.data() + run.begin);
    done = run.end;
  }
  std::fill(scratch.weights.begin() + static_cast<std::ptrdiff_t>(done), scratch.weights.end(),
            0.0f);
}

std::span<const float> block_of(std::span<const float> values, std::size_t begin) {
  return values.subspan(begin, std::min(kBlock, values.size() - begin));
}

double block_sum(std::span<const float> weights, std::size_t begin) {
  const std::span<const float> block = block_of(weights, begin);
  return logit_kernels().sum(block.data(), block.size());
}

// One draw in proportion to all weights: first the block, then the token in it.
TokenId draw_from_all(std::span<const float> weights, double total, double uniform) {
  const double target = uniform * total;
  double before = 0.0;
  std::size_t chosen = 0;
  double before_chosen = 0.0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const double sum = block_sum(weights, begin);
    if (!(sum > 0.0)) continue;
    chosen = begin;
    before_chosen = before;
    before += sum;
    if (before > target) break;
  }
  const std::size_t index = index_at(block_of(weights, chosen), target - before_chosen,
                                     [](float weight) { return weight; });
  return static_cast<TokenId>(chosen + index);
}

void drop_below(std::vector<Candidate>& candidates, float least) {
  std::erase_if(candidates,
                [least](const Candidate& candidate) { return candidate.weight < least; });
}

TokenId sample_top_k(std::span<const float> logits, const SampleableTokens& tokens,
                     const SamplingParams& params, float max, double uniform,
                     SamplerScratch& scratch) {
  std::vector<Candidate>& candidates = scratch.candidates;
  gather_top_k(logits, tokens, static_cast<std::size_t>(params.top_k), candidates);
  double total = 0.0;
  for (Candidate& candidate : candidates) {
    logit_kernels().weigh(&candidate.logit, 1, max, params.temperature, &candidate.weight);
    total += static_cast<double>(candidate.weight);
  }
  if (params.top_p < 1.0f) keep_nucleus(candidates, static_cast<double>(params.top_p) * total);
  drop_below(candidates, params.min_p);
  return draw_candidate(candidates, uniform);
}

TokenId sample_all(std::span<const float> logits, const SampleableTokens& tokens,
                   const SamplingParams& params, float max, double uniform,
                   SamplerScratch& scratch) {
  weigh_all(logits, tokens, max, params.temperature, scratch);
  const std::span<const float> weights = std::span(scratch.weights).first(logits.size());
  double total = 0.0;
  if (params.top_p < 1.0f || params.min_p <= 0.0f) {
    for (std::size_t begin = 0; begin < weights.size(); begin += kBlock)
      total += block_sum(weights, begin);
  }
  if (params.top_p >= 1.0f && params.min_p <= 0.0f) return draw_from_all(weights, total, uniform);

  // Tokens lighter than outside / n weigh less than `outside` together: none is in the nucleus.
  const double outside = (1.0 - static_cast<double>(params.top_p)) * total;
  const auto negligible = static_cast<float>(outside / static_cast<double>(logits.size()));
  gather_weighty(logits, weights, tokens, std::max(negligible, params.min_p), scratch.candidates);
  if (params.top_p < 1.0f)
    keep_nucleus(scratch.candidates, static_cast<double>(params.top_p) * total);
  return draw_candidate(scratch.candidates, uniform);
}

}  // namespace

SampleableTokens::SampleableTokens(int n_token, const std::function<bool(TokenId)>& never_sampled) {
  for (TokenId id = 0; id < n_token; ++id) {
    if (never_sampled(id)) continue;
    const auto index = static_cast<std::size_t>(id);
    if (!runs_.empty() && runs_.back().end == index)
      ++runs_.back().end;
    else
      runs_.push_back({index, index + 1});
  }
}

SamplerState::SamplerState(SamplingParams params, std::uint64_t seed)
    : params_(std::move(params)), seed_(seed) {}

bool SamplerState::adjusts_logits() const {
  return !params_.logit_bias.empty() || !window_.entries().empty() || !generated_.entries().empty();
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
  if (params_.frequency_penalty != 0.0f || params_.presence_penalty != 0.0f) generated_.add(id);
}

SamplerScratch::SamplerScratch(int n_vocab)
    : adjusted(static_cast<std::size_t>(n_vocab)), weights(static_cast<std::size_t>(n_vocab)) {}

Result<TokenId> sample(std::span<const float> logits, const SampleableTokens& tokens,
                       const SamplerState& state, std::uint64_t position, SamplerScratch& scratch) {
  CHECK(logits.size() <= scratch.weights.size(), "{} logits, scratch for {}", logits.size(),
        scratch.weights.size());
  const SamplingParams& params = state.params();
  const std::span<const float> adjusted = adjust(logits, state, scratch);
  TESSERA_ASSIGN(const float max, finite_max(adjusted, tokens));
  if (params.temperature == 0.0f || params.top_k == 1) return first_equal(adjusted, tokens, max);
  const double drawn = uniform({.seed = state.seed(), .position = position});
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size())
    return sample_top_k(adjusted, tokens, params, max, drawn, scratch);
  return sample_all(adjusted, tokens, params, max, drawn, scratch);
}

Result<ScoredToken> score(std::span<const float> logits, const SampleableTokens& tokens,
                          const Scoring& wanted, SamplerScratch& scratch) {
  const auto id = static_cast<std::size_t>(wanted.id);
  CHECK(id < logits.size(), "token {} of {}", wanted.id, logits.size());
  const float max = logit_kernels().max(logits.data(), logits.size());
  if (!std::isfinite(max))
    return Error::make(ErrorCode::internal,
                       "the model's logits are not numbers to score: the largest is {}", max);
  const double log_sum = std::log(logit_kernels().sum_exp(logits.data(), logits.size(), max));
  const auto logprob = [&](float logit) {
    const double value = static_cast<double>(logit) - static_cast<double>(max) - log_sum;
    return std::isnan(value) ? -std::numeric_limits<float>::infinity() : static_cast<float>(value);
  };
  ScoredToken scored;
  scored.logprob = logprob(logits[id]);
  if (wanted.n_top <= 0) return scored;
  gather_top_k(logits, tokens, static_cast<std::size_t>(wanted.n_top), scratch.candidates);
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), ranks_before);
  scored.top.reserve(scratch.candidates.size());
  for (const Candidate& candidate : scratch.candidates)
    scored.top.push_back({candidate.id, logprob(candidate.logit)});
  return scored;
}

}  // namespace tessera
