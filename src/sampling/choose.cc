#include "sampling/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "sampling/candidates.h"
#include "sampling/logit_kernels.h"

namespace tessera {
namespace {

float largest(std::span<const float> logits, const SampleableTokens& tokens) {
  float best = -std::numeric_limits<float>::infinity();
  for (const SampleableTokens::Run& run : tokens.runs())
    best = std::max(best, logit_kernels().max(logits.data() + run.begin, run.end - run.begin));
  return best;
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

std::span<const float> block_of(std::span<const float> values, std::size_t begin) {
  return values.subspan(begin, std::min(kLogitBlock, values.size() - begin));
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
  for (std::size_t begin = 0; begin < weights.size(); begin += kLogitBlock) {
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

SampleableTokens::SampleableTokens(const ModelSpec& spec)
    : SampleableTokens(std::min(spec.n_token, spec.n_vocab), [&](TokenId id) {
        return std::binary_search(spec.suppressed_tokens.begin(), spec.suppressed_tokens.end(), id);
      }) {}

bool SampleableTokens::contains(TokenId id) const {
  if (id < 0) return false;
  const auto index = static_cast<std::size_t>(id);
  const auto after =
      std::upper_bound(runs_.begin(), runs_.end(), index,
                       [](std::size_t at, const Run& run) { return at < run.begin; });
  return after != runs_.begin() && index < std::prev(after)->end;
}

TokenChooser::TokenChooser(SampleableTokens tokens, int n_vocab)
    : tokens_(std::move(tokens)),
      changed_(static_cast<std::size_t>(n_vocab)),
      weights_(static_cast<std::size_t>(n_vocab)) {}

void TokenChooser::choose(std::span<const float> logits, const TokenChoices& choices,
                          std::span<ChosenToken> chosen) {
  for (ChosenToken& token : chosen) token.id = kNotChosen;
  choose_left(logits, choices, chosen);
}

void TokenChooser::choose_left(std::span<const float> logits, const TokenChoices& choices,
                               std::span<ChosenToken> chosen) {
  const std::size_t n_vocab = weights_.size();
  CHECK(logits.size() == choices.rows.size() * n_vocab && chosen.size() == choices.rows.size(),
        "{} logits and {} places for {} choices", logits.size(), chosen.size(),
        choices.rows.size());
  std::size_t change = 0;
  for (std::size_t row = 0; row < chosen.size(); ++row) {
    const TokenChoice& choice = choices.rows[row];
    const auto changes = static_cast<std::size_t>(choice.n_changes);
    if (chosen[row].id == kNotChosen)
      choose_row(logits.subspan(row * n_vocab, n_vocab), choice,
                 choices.changes.subspan(change, changes), chosen[row]);
    change += changes;
  }
}

void TokenChooser::choose_row(std::span<const float> logits, const TokenChoice& choice,
                              std::span<const LogitChange> changes, ChosenToken& chosen) {
  chosen.id = choice.given;
  chosen.logprob = 0.0f;
  chosen.top.clear();
  if (chosen.id == kNoToken) {
    const std::span<const float> row = changed(logits, changes);
    chosen.largest = largest(row, tokens_);
    if (!std::isfinite(chosen.largest)) return;
    chosen.id = draw(row, choice, chosen.largest);
  }
  if (choice.n_top >= 0) score(logits, choice.n_top, chosen);
}

// The row itself when nothing changes.
std::span<const float> TokenChooser::changed(std::span<const float> logits,
                                             std::span<const LogitChange> changes) {
  if (changes.empty()) return logits;
  changed_.assign(logits.begin(), logits.end());
  for (const LogitChange& change : changes) {
    float& logit = changed_[static_cast<std::size_t>(change.id)];
    logit += change.bias;
    logit = logit > 0.0f ? logit / change.penalty : logit * change.penalty;
    logit -= change.less;
  }
  return changed_;
}

TokenId TokenChooser::first_equal(std::span<const float> logits, float value) const {
  for (const SampleableTokens::Run& run : tokens_.runs())
    for (std::size_t id = run.begin; id < run.end; ++id)
      if (logits[id] == value) return static_cast<TokenId>(id);
  CHECK(false, "{} is the largest logit of no token", value);
}

TokenId TokenChooser::draw(std::span<const float> logits, const TokenChoice& choice, float max) {
  if (choice.temperature == 0.0f || choice.top_k == 1) return first_equal(logits, max);
  if (choice.top_k > 0 && static_cast<std::size_t>(choice.top_k) < logits.size())
    return draw_of_top_k(logits, choice, max);
  return draw_of_all(logits, choice, max);
}

TokenId TokenChooser::draw_of_top_k(std::span<const float> logits, const TokenChoice& choice,
                                    float max) {
  gather_top_k(logits, tokens_, static_cast<std::size_t>(choice.top_k), candidates_);
  double total = 0.0;
  for (Candidate& candidate : candidates_) {
    logit_kernels().weigh(&candidate.logit, 1, max, choice.temperature, &candidate.weight);
    total += static_cast<double>(candidate.weight);
  }
  if (choice.top_p < 1.0f) keep_nucleus(candidates_, static_cast<double>(choice.top_p) * total);
  drop_below(candidates_, choice.min_p);
  return draw_candidate(candidates_, choice.uniform);
}

TokenId TokenChooser::draw_of_all(std::span<const float> logits, const TokenChoice& choice,
                                  float max) {
  weigh_all(logits, max, choice.temperature);
  const std::span<const float> weights = std::span(weights_).first(logits.size());
  double total = 0.0;
  if (choice.top_p < 1.0f || choice.min_p <= 0.0f) {
    for (std::size_t begin = 0; begin < weights.size(); begin += kLogitBlock)
      total += block_sum(weights, begin);
  }
  if (choice.top_p >= 1.0f && choice.min_p <= 0.0f)
    return draw_from_all(weights, total, choice.uniform);

  // Tokens lighter than outside / n weigh less than `outside` together: none is in the nucleus.
  const double outside = (1.0 - static_cast<double>(choice.top_p)) * total;
  const auto negligible = static_cast<float>(outside / static_cast<double>(logits.size()));
  gather_weighty(logits, weights, tokens_, std::max(negligible, choice.min_p), candidates_);
  if (choice.top_p < 1.0f) keep_nucleus(candidates_, static_cast<double>(choice.top_p) * total);
  return draw_candidate(candidates_, choice.uniform);
}

void TokenChooser::weigh_all(std::span<const float> logits, float max, float temperature) {
  std::size_t done = 0;
  for (const SampleableTokens::Run& run : tokens_.runs()) {
    std::fill(weights_.begin() + static_cast<std::ptrdiff_t>(done),
              weights_.begin() + static_cast<std::ptrdiff_t>(run.begin), 0.0f);
    logit_kernels().weigh(logits.data() + run.begin, run.end - run.begin, max, temperature,
                          weights_.data() + run.begin);
    done = run.end;
  }
  std::fill(weights_.begin() + static_cast<std::ptrdiff_t>(done), weights_.end(), 0.0f);
}

void TokenChooser::score(std::span<const float> logits, int n_top, ChosenToken& chosen) {
  const auto id = static_cast<std::size_t>(chosen.id);
  CHECK(id < logits.size(), "token {} of {}", chosen.id, logits.size());
  chosen.largest = logit_kernels().max(logits.data(), logits.size());
  if (!std::isfinite(chosen.largest)) {
    chosen.id = kNoToken;
    return;
  }
  const auto max = static_cast<double>(chosen.largest);
  const double log_sum =
      std::log(logit_kernels().sum_exp(logits.data(), logits.size(), chosen.largest));
  const auto logprob = [&](float logit) {
    const double value = static_cast<double>(logit) - max - log_sum;
    return std::isnan(value) ? -std::numeric_limits<float>::infinity() : static_cast<float>(value);
  };
  chosen.logprob = logprob(logits[id]);
  if (n_top == 0) return;
  gather_top_k(logits, tokens_, static_cast<std::size_t>(n_top), candidates_);
  std::sort(candidates_.begin(), candidates_.end(), ranks_before);
  for (const Candidate& candidate : candidates_)
    chosen.top.push_back({candidate.id, logprob(candidate.logit)});
}

Error no_token_error(const ChosenToken& chosen) {
  return Error::make(ErrorCode::internal,
                     "the model's logits are not numbers to choose from: the largest is {}",
                     chosen.largest);
}

}  // namespace tessera
