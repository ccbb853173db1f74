#include "sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sampling/logit_kernels.h"

namespace tessera {
namespace {

// Calls visit(first id, end id) for the blocks of `values` that hold one above `bound()`.
template <typename Bound, typename Visit>
void for_blocks_above(std::span<const float> values, const SampleableTokens& tokens, Bound bound,
                      Visit visit) {
  const LogitKernels& kernels = logit_kernels();
  for (const SampleableTokens::Run& run : tokens.runs()) {
    for (std::size_t begin = run.begin; begin < run.end; begin += kLogitBlock) {
      const std::size_t end = std::min(begin + kLogitBlock, run.end);
      if (kernels.max(values.data() + begin, end - begin) > bound()) visit(begin, end);
    }
  }
}

std::ptrdiff_t offset(std::size_t index) {
  return static_cast<std::ptrdiff_t>(index);
}

void keep_first(std::vector<Candidate>& candidates, std::size_t k) {
  std::nth_element(candidates.begin(), candidates.begin() + offset(k - 1), candidates.end(),
                   ranks_before);
  candidates.resize(k);
}

}  // namespace

void gather_top_k(std::span<const float> logits, const SampleableTokens& tokens, std::size_t k,
                  std::vector<Candidate>& candidates) {
  candidates.clear();
  if (k == 0) return;
  const std::size_t full = std::max<std::size_t>(2 * k, 2 * kLogitBlock);
  // Ids rise, so a later logit equal to the worst of k kept ones ranks behind it.
  float bound = -std::numeric_limits<float>::infinity();
  for_blocks_above(
      logits, tokens, [&] { return bound; },
      [&](std::size_t begin, std::size_t end) {
        for (std::size_t id = begin; id < end; ++id) {
          if (!(logits[id] > bound)) continue;
          candidates.push_back({logits[id], 0.0f, static_cast<TokenId>(id)});
          if (candidates.size() < full) continue;
          keep_first(candidates, k);
          bound = candidates.back().logit;
        }
      });
  if (candidates.size() > k) keep_first(candidates, k);
}

void gather_weighty(std::span<const float> logits, std::span<const float> weights,
                    const SampleableTokens& tokens, float least,
                    std::vector<Candidate>& candidates) {
  candidates.clear();
  const float floor = std::max(least, std::numeric_limits<float>::denorm_min());
  const float below = std::nextafter(floor, 0.0f);
  for_blocks_above(
      weights, tokens, [&] { return below; },
      [&](std::size_t begin, std::size_t end) {
        for (std::size_t id = begin; id < end; ++id)
          if (weights[id] >= floor)
            candidates.push_back({logits[id], weights[id], static_cast<TokenId>(id)});
      });
}

void keep_nucleus(std::vector<Candidate>& candidates, double mass) {
  // Quickselect by weight: [0, low) is inside the nucleus, [high, end) outside.
  std::size_t low = 0;
  std::size_t high = candidates.size();
  double inside = 0.0;
  while (high - low > 32) {
    const std::size_t middle = low + (high - low) / 2;
    std::nth_element(candidates.begin() + offset(low), candidates.begin() + offset(middle),
                     candidates.begin() + offset(high), ranks_before);
    double left = inside;
    for (std::size_t i = low; i < middle; ++i) left += static_cast<double>(candidates[i].weight);
    if (left >= mass) {
      high = middle;
    } else {
      inside = left;
      low = middle;
    }
  }
  std::sort(candidates.begin() + offset(low), candidates.begin() + offset(high), ranks_before);
  while (low < high) {
    inside += static_cast<double>(candidates[low++].weight);
    if (inside >= mass) break;
  }
  candidates.resize(low);
}

}  // namespace tessera
