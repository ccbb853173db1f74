// What a run says against what the golden model says, or another run: tokens and log-probabilities.
#pragma once

#include <gtest/gtest.h>

#include "tests/golden_data.h"
#include "tests/model_runner.h"

namespace tessera::testing {

// Of the log-probabilities.
inline double worst_difference(std::span<const float> got, std::span<const float> expected,
                               std::size_t vocab) {
  double worst = 0.0;
  for (std::size_t row = 0; row * vocab < expected.size(); ++row) {
    const std::vector<double> a = log_softmax(got.subspan(row * vocab, vocab));
    const std::vector<double> b = log_softmax(expected.subspan(row * vocab, vocab));
    for (std::size_t i = 0; i < vocab; ++i) {
      const double difference = std::abs(a[i] - b[i]);
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);  // of either
    }
  }
  return worst;
}

// Those of which the model is certain.
inline void expect_greedy(const GoldenData& golden, ModelRunner& runner, float least_margin) {
  ASSERT_TRUE(runner.ready());
  const auto vocab = static_cast<std::size_t>(runner.spec().n_vocab);
  const std::span<const std::int32_t> prompt = golden.ints("p33_ids");
  const std::span<const std::int32_t> expected = golden.ints("greedy_from_p33");
  const std::span<const float> margin = golden.floats("greedy_margin");
  ModelRunner::Sequence sequence = runner.start(128);
  ModelRunner::Feed feed{&sequence, {prompt.begin(), prompt.end()}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::vector<float> logits = runner.step({&feed, 1});
    const auto last = logits.end() - static_cast<std::ptrdiff_t>(vocab);
    const auto best = static_cast<TokenId>(std::max_element(last, logits.end()) - last);
    if (margin[i] > least_margin) {
      EXPECT_EQ(best, expected[i]) << "step " << i;
    }
    feed.tokens = {expected[i]};
  }
}

}  // namespace tessera::testing
