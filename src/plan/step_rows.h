// How many rows of prompts a step of GPUs takes where nobody said (--prefill-chunk).
//
//   const Plan least = plan with kLeastStepRows;
//   for (const int rows : step_rows(least))
//     if (plan with rows; rows_cost_little(plan, least)) take it;
//
// A GPU decodes all weights once a step, so a long prompt is best in few steps; other sequences'
// tokens wait for each. Experts away cross the link once a step, for longer than a GPU computes
// thousands of rows: there a step has as many as it computes meanwhile.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace tessera {

inline constexpr int kLeastStepRows = 256;
inline constexpr int kGpuStepRows = 2048;

// What is worth trying beside the plan with kLeastStepRows, most rows first; none as few as that.
std::vector<int> step_rows(const Plan& least);

// Whether a plan with more rows a step costs neither context, nor tables or experts that would be
// resident, nor the way of experts over the link, for which the host has to have room. Where
// experts are away already it may be an eighth more.
bool rows_cost_little(const Plan& larger, const Plan& least);

}  // namespace tessera
