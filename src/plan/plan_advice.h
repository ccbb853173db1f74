// What would fit where a plan does not, for its error: each choice by itself, tried before it is
// named.
//
//   what_would_fit(options, "a budget of 213 MiB for cpu", attempt);
//   // "--ctx 1024 or a budget of 213 MiB for cpu would fit"
#pragma once

#include <functional>
#include <string>

#include "plan/plan.h"

namespace tessera {

// Plans with other options.
struct PlanAttempts {
  std::function<bool(const PlanOptions& options)> fits;  // much sooner than a plan
  std::function<Result<Plan>(const PlanOptions& options)> plan;
};

// `enough`: ShardPlanner::enough().
std::string what_would_fit(const PlanOptions& options, const std::string& enough,
                           const PlanAttempts& attempts);

}  // namespace tessera
