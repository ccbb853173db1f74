// Choices of tokens of every kind, and that a runner makes them as the logits have it.
#pragma once

#include "sampling/choose.h"
#include "tests/model_runner.h"

namespace tessera::testing {

struct Choices {
  std::vector<TokenChoice> rows;
  std::vector<LogitChange> changes;
  operator TokenChoices() const { return {rows, changes}; }
};

// For `rows` rows: greedy ones, draws of all kinds, some with changes, and tokens that are given.
// most_changes: of the last row.
inline Choices all_kinds(std::size_t rows, const ModelSpec& spec, int most_changes) {
  constexpr TokenChoice kKinds[] = {
      {},
      {.temperature = 1.3f, .uniform = 0.62},
      {.temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .min_p = 0.01f, .uniform = 0.3, .n_top = 3},
      {.given = 11, .n_top = 2},
      {.temperature = 2.0f, .top_p = 0.95f, .uniform = 0.97, .n_top = 0},
      {.n_top = 20}};
  Choices choices;
  for (std::size_t row = 0; row < rows; ++row) {
    TokenChoice& choice = choices.rows.emplace_back(kKinds[row % std::size(kKinds)]);
    choice.n_changes = row + 1 == rows ? most_changes : static_cast<int>(row % 4);
    for (int i = 0; i < choice.n_changes; ++i)
      choices.changes.push_back(
          {.id = static_cast<TokenId>(row * 7 + static_cast<std::size_t>(i)) % spec.n_vocab,
           .bias = static_cast<float>(i % 3) * 2.0f,
           .penalty = 1.2f,
           .less = 0.1f});
  }
  return choices;
}

// The tokens of a prompt's rows, in chunks, against those of the same rows' logits.
inline void expect_choices(ModelRunner& runner, std::span<const TokenId> ids,
                           std::span<const float> logits, std::size_t chunk, int most_changes) {
  TokenChooser chooser(runner.spec());
  const auto n_vocab = static_cast<std::size_t>(runner.spec().n_vocab);
  ModelRunner::Sequence sequence = runner.start(static_cast<int>(ids.size()));
  for (std::size_t at = 0; at < ids.size(); at += chunk) {
    const std::size_t n = std::min(chunk, ids.size() - at);
    const auto tokens = ids.subspan(at, n);
    const Choices choices = all_kinds(n, runner.spec(), most_changes);
    ModelRunner::Feed feed{&sequence, {tokens.begin(), tokens.end()}};
    const std::vector<ChosenToken> got = runner.choose({&feed, 1}, choices);
    std::vector<ChosenToken> expected(n);
    chooser.choose(logits.subspan(at * n_vocab, n * n_vocab), choices, expected);
    ASSERT_EQ(got.size(), n);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(got[i].id, expected[i].id) << "row " << at + i;
      EXPECT_EQ(got[i].logprob, expected[i].logprob) << "row " << at + i;
      ASSERT_EQ(got[i].top.size(), expected[i].top.size()) << "row " << at + i;
      for (std::size_t k = 0; k < got[i].top.size(); ++k) {
        EXPECT_EQ(got[i].top[k].id, expected[i].top[k].id);
        EXPECT_EQ(got[i].top[k].logprob, expected[i].top[k].logprob);
      }
    }
  }
}

}  // namespace tessera::testing
