// The smallest budget with which a model can be placed, to the KiB.
#pragma once

#include "tests/model_runner.h"

namespace tessera::testing {

inline std::int64_t least_budget(const Model& model, RunnerOptions options) {
  constexpr std::int64_t kStep = 1024;
  std::int64_t bad = 0, good = (std::int64_t{1} << 30) / kStep;
  while (good - bad > 1) {
    const std::int64_t middle = bad + (good - bad) / 2;
    options.budget = middle * kStep;
    (runner_plan(model, options) ? good : bad) = middle;
  }
  return good * kStep;
}

}  // namespace tessera::testing
