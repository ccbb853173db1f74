#include "engine/step_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tessera {
namespace {

std::vector<int> planned(const std::vector<StepDemand>& demands, const StepLimits& limits,
                         StepTurn turn = StepTurn::all) {
  std::vector<int> rows(demands.size(), -1);
  plan_step(demands, limits, turn, rows);
  return rows;
}

const StepLimits kLimits = {
    .max_rows = 16, .max_logit_rows = 8, .prefill_rows = 10, .max_chunk = 8};

TEST(StepPlanner, DecodesGoWithPromptsInOrder) {
  EXPECT_EQ(
      planned({{.prompt_left = 0}, {.prompt_left = 6}, {.prompt_left = 0}, {.prompt_left = 9}},
              kLimits),
      (std::vector<int>{1, 6, 1, 4}));
}

TEST(StepPlanner, DecodesAndPromptsMayTakeTurns) {
  const std::vector<StepDemand> both = {{.prompt_left = 0}, {.prompt_left = 6}, {.prompt_left = 9}};
  StepTurn turn = next_turn(both, StepTurn::all);
  EXPECT_EQ(turn, StepTurn::prompts);
  EXPECT_EQ(planned(both, kLimits, turn), (std::vector<int>{0, 6, 4}));
  turn = next_turn(both, turn);
  EXPECT_EQ(turn, StepTurn::decoding);
  EXPECT_EQ(planned(both, kLimits, turn), (std::vector<int>{1, 0, 0}));
  EXPECT_EQ(next_turn(both, turn), StepTurn::prompts);
  const std::vector<StepDemand> decoding(2), prompts(2, {.prompt_left = 3});
  EXPECT_EQ(next_turn(decoding, StepTurn::decoding), StepTurn::all);
  EXPECT_EQ(next_turn(prompts, StepTurn::prompts), StepTurn::all);
}

TEST(StepPlanner, OneSequenceKeepsToItsChunk) {
  EXPECT_EQ(planned({{.prompt_left = 100}, {.prompt_left = 100}}, kLimits),
            (std::vector<int>{8, 2}));
}

TEST(StepPlanner, PromptLogitsAreBounded) {
  EXPECT_EQ(planned({{.prompt_left = 100, .prompt_logits = true}, {}, {}, {}}, kLimits),
            (std::vector<int>{5, 1, 1, 1}));
  const StepLimits tight = {
      .max_rows = 16, .max_logit_rows = 2, .prefill_rows = 10, .max_chunk = 8};
  EXPECT_EQ(planned({{.prompt_left = 100, .prompt_logits = true}, {.prompt_left = 30}}, tight),
            (std::vector<int>{1, 8}));
}

TEST(StepPlanner, LimitsHoldAndNobodyStarves) {
  std::mt19937 random(5);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<StepDemand> demands(static_cast<std::size_t>(draw(1, 8)));
    for (StepDemand& demand : demands)
      demand = {.prompt_left = draw(0, 1) * draw(1, 40), .prompt_logits = draw(0, 1) == 1};
    const int n = static_cast<int>(demands.size());
    const StepLimits limits = {.max_rows = draw(n, 20),
                               .max_logit_rows = draw(n, 12),
                               .prefill_rows = draw(1, 30),
                               .max_chunk = draw(1, 20)};
    const std::vector<int> rows = planned(demands, limits);
    int total = 0, logits = 0, prompt_rows = 0;
    bool first_prompt = true;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const StepDemand& demand = demands[i];
      total += rows[i];
      if (demand.prompt_left == 0) {
        ASSERT_EQ(rows[i], 1);
        ++logits;
        continue;
      }
      ASSERT_LE(rows[i], std::min(demand.prompt_left, limits.max_chunk));
      if (first_prompt) {
        ASSERT_GE(rows[i], 1);
      }
      first_prompt = false;
      prompt_rows += rows[i];
      if (demand.prompt_logits)
        logits += rows[i];
      else
        logits += rows[i] == demand.prompt_left ? 1 : 0;
    }
    ASSERT_LE(total, limits.max_rows);
    ASSERT_LE(prompt_rows, limits.prefill_rows);
    ASSERT_LE(logits, limits.max_logit_rows);
  }
}

}  // namespace
}  // namespace tessera
