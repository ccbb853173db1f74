#include "engine/step_planner.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

namespace {

int count_decoding(std::span<const StepDemand> demands) {
  return static_cast<int>(std::count_if(demands.begin(), demands.end(),
                                        [](const StepDemand& d) { return d.prompt_left == 0; }));
}

}  // namespace

StepTurn next_turn(std::span<const StepDemand> demands, StepTurn before) {
  const int decoding = count_decoding(demands);
  if (decoding == 0 || decoding == static_cast<int>(demands.size())) return StepTurn::all;
  return before == StepTurn::prompts ? StepTurn::decoding : StepTurn::prompts;
}

void plan_step(std::span<const StepDemand> demands, const StepLimits& limits, StepTurn turn,
               std::span<int> rows) {
  const auto sequences = static_cast<int>(demands.size());
  CHECK(sequences <= limits.max_rows && sequences <= limits.max_logit_rows,
        "{} sequences, {} rows, {} logit rows", sequences, limits.max_rows, limits.max_logit_rows);
  const int decoding = turn == StepTurn::prompts ? 0 : count_decoding(demands);
  int prompt_rows =
      turn == StepTurn::decoding ? 0 : std::min(limits.prefill_rows, limits.max_rows - decoding);
  // One logit row is kept for each sequence: a prompt may end in any step.
  int spare_logits = limits.max_logit_rows - sequences;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const StepDemand& demand = demands[i];
    if (demand.prompt_left == 0) {
      rows[i] = turn == StepTurn::prompts ? 0 : 1;
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
