#include "engine/step_planner.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

void plan_step(std::span<const StepDemand> demands, const StepLimits& limits, std::span<int> rows) {
  const auto sequences = static_cast<int>(demands.size());
  CHECK(sequences <= limits.max_rows && sequences <= limits.max_logit_rows,
        "{} sequences, {} rows, {} logit rows", sequences, limits.max_rows, limits.max_logit_rows);
  const auto decoding = static_cast<int>(std::count_if(
      demands.begin(), demands.end(), [](const StepDemand& d) { return d.prompt_left == 0; }));
  int prompt_rows = std::min(limits.prefill_rows, limits.max_rows - decoding);
  // One logit row is kept for each sequence: a prompt may end in any step.
  int spare_logits = limits.max_logit_rows - sequences;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const StepDemand& demand = demands[i];
    if (demand.prompt_left == 0) {
      rows[i] = 1;
      continue;
    }
    rows[i] = std::min({demand.prompt_left, prompt_rows, limits.max_chunk});
    if (demand.prompt_logits && rows[i] > 0) {
      rows[i] = std::min(rows[i], spare_logits + 1);
      spare_logits -= rows[i] - 1;
    }
    prompt_rows -= rows[i];
  }
}

}  // namespace tessera
