#include "plan/plan_advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {
namespace {

constexpr int kContextStep = kPageTokens;  // what a context takes grows by pages

// The largest of step, 2 step, ... below `limit` that fits; 0: none does, which is often so and
// found first.
template <typename Fits>
int largest(int step, int limit, Fits fits) {
  int good = 1, bad = (limit + step - 1) / step;
  if (bad <= good || !fits(step)) return 0;
  while (bad - good > 1) {
    const int middle = good + (bad - good) / 2;
    (fits(middle * step) ? good : bad) = middle;
  }
  return good * step;
}

std::string split_text(const Plan& plan) {
  std::vector<int> counts;
  for (const ShardPlan& shard : plan.shards)
    counts.push_back(shard.layout.end_layer - shard.layout.first_layer);
  return fmt::format("--target-layer-split {}", fmt::join(counts, ","));
}

}  // namespace

std::string what_would_fit(const PlanOptions& options, const std::string& enough,
                           const PlanAttempts& attempts) {
  std::vector<std::string> choices;
  const auto add_largest = [&](const char* name, int PlanOptions::*field, int step, int limit) {
    PlanOptions other = options;
    const int value = largest(step, limit, [&](int v) {
      other.*field = v;
      return attempts.fits(other);
    });
    if (value > 0) choices.push_back(fmt::format("{} {}", name, value));
  };
  if (!options.layer_weights.empty()) {
    PlanOptions other = options;
    other.layer_weights.clear();
    if (const Result<Plan> plan = attempts.plan(other)) choices.push_back(split_text(*plan));
  }
  if (options.context > 0)
    add_largest("--ctx", &PlanOptions::context, kContextStep, options.context);
  add_largest("--parallel", &PlanOptions::parallel, 1, options.parallel);
  add_largest("--prefill-chunk", &PlanOptions::prefill_chunk, 16, options.prefill_chunk);
  if (options.lock_experts) {
    PlanOptions other = options;
    other.lock_experts = false;
    if (attempts.fits(other)) choices.push_back("--expert-prefault on");
  }
  if (!enough.empty()) choices.push_back(enough);
  if (choices.empty()) return "take a smaller model, or more memory";
  return fmt::format("{} would fit", fmt::join(choices, " or "));
}

}  // namespace tessera
