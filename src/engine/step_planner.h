// Which sequence gets how many rows of the next step.
//
// Every decoding sequence gets its one row. Prompts share what is left of the step, in order of
// admission: the first takes all it can use before the next gets any. While there is a prompt, at
// least one row of it goes along, so neither side starves the other. Where they must not share a
// step (LocalEngineOptions::prompts_alone), they take turns. Pure.
#pragma once

#include <span>

namespace tessera {

struct StepLimits {
  int max_rows = 0;        // rows of one batch
  int max_logit_rows = 0;  // rows of one head call
  int prefill_rows = 0;    // prompt rows of one step, all sequences together
  int max_chunk = 0;       // rows of one sequence
};

struct StepDemand {
  int prompt_left = 0;         // 0: decoding
  bool prompt_logits = false;  // every prompt row needs logits, not only the last
};

// Who has rows in a step: everybody, or sequences that decode alone, or prompts alone.
enum class StepTurn { all, decoding, prompts };
// Whose turn it is behind a step of `before`: all, where only one side wants rows.
StepTurn next_turn(std::span<const StepDemand> demands, StepTurn before);

// Fills rows[i] for demands[i]; both in order of admission, no more of them than max_rows or
// max_logit_rows.
void plan_step(std::span<const StepDemand> demands, const StepLimits& limits, StepTurn turn,
               std::span<int> rows);

}  // namespace tessera
