#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "engine/philox.h"
#include "sampling/choose.h"

namespace tessera {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Row {
 public:
  explicit Row(
      std::vector<float> logits, std::function<bool(TokenId)> never = [](TokenId) { return false; })
      : logits_(std::move(logits)),
        chooser_(SampleableTokens(static_cast<int>(logits_.size()), never),
                 static_cast<int>(logits_.size())) {}

  TokenId pick(const SamplerState& state, std::uint64_t position = 0) {
    std::vector<LogitChange> changes;
    const TokenChoice choice = state.choice(position, changes);
    return chosen(choice, changes).id;
  }
  TokenId pick(const SamplingParams& params, std::uint64_t seed = 1, std::uint64_t position = 0) {
    return pick(SamplerState(params, seed), position);
  }
  ChosenToken scored(TokenId id, int top) { return chosen({.given = id, .n_top = top}); }
  ChosenToken chosen(const TokenChoice& choice, std::span<const LogitChange> changes = {}) {
    ChosenToken token;
    chooser_.choose(logits_, {{&choice, 1}, changes}, {&token, 1});
    return token;
  }
  std::map<TokenId, int> histogram(const SamplingParams& params, int draws) {
    std::map<TokenId, int> counts;
    const SamplerState state(params, 99);
    for (int i = 0; i < draws; ++i) ++counts[pick(state, static_cast<std::uint64_t>(i))];
    return counts;
  }

 private:
  std::vector<float> logits_;
  TokenChooser chooser_;
};

SamplingParams greedy_choice() {
  return {.temperature = 0.0f};
}

// The documented chain over a full sort, in double.
std::vector<double> reference_distribution(const std::vector<float>& logits,
                                           const SamplingParams& params) {
  std::vector<std::size_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0)
    order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));
  std::vector<double> weights;
  double total = 0.0;
  for (std::size_t id : order) {
    weights.push_back(
        std::exp((static_cast<double>(logits[id]) - static_cast<double>(logits[order[0]])) /
                 static_cast<double>(params.temperature)));
    total += weights.back();
  }
  double sum = 0.0;
  std::size_t kept = 0;
  while (kept < order.size()) {
    sum += weights[kept++];
    if (params.top_p < 1.0f && sum >= static_cast<double>(params.top_p) * total) break;
  }
  while (kept > 1 && weights[kept - 1] < static_cast<double>(params.min_p)) --kept;
  double mass = 0.0;
  for (std::size_t i = 0; i < kept; ++i) mass += weights[i];
  std::vector<double> distribution(logits.size(), 0.0);
  for (std::size_t i = 0; i < kept; ++i) distribution[order[i]] = weights[i] / mass;
  return distribution;
}

void expect_distribution(const std::vector<float>& logits, const SamplingParams& params) {
  constexpr int kDraws = 20000;
  const std::vector<double> expected = reference_distribution(logits, params);
  Row row(logits);
  const std::map<TokenId, int> counts = row.histogram(params, kDraws);
  double chi_square = 0.0;
  int degrees = -1;
  for (std::size_t id = 0; id < expected.size(); ++id) {
    const auto found = counts.find(static_cast<TokenId>(id));
    const int seen = found == counts.end() ? 0 : found->second;
    if (expected[id] == 0.0) {
      EXPECT_EQ(seen, 0) << "token " << id << " was filtered out";
      continue;
    }
    const double mean = expected[id] * kDraws;
    chi_square += (seen - mean) * (seen - mean) / mean;
    ++degrees;
  }
  // Mean `degrees`, deviation sqrt(2 degrees): five deviations, and some room for few degrees.
  EXPECT_LT(chi_square, degrees + 5.0 * std::sqrt(2.0 * degrees) + 8.0);
}

const std::vector<float> kSmall = {1.0f, 0.2f, -0.5f, 2.0f, 1.5f, 1.5f, -1.0f, 0.0f, 0.9f, 1.1f};

TEST(Philox, KnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, Plain) {
  expect_distribution(kSmall, {});
}
TEST(Sampler, Temperature) {
  expect_distribution(kSmall, {.temperature = 0.4f});
  expect_distribution(kSmall, {.temperature = 3.0f});
}
TEST(Sampler, TopK) {
  expect_distribution(kSmall, {.top_k = 4});
  expect_distribution(kSmall, {.top_k = 2});  // of two equal logits the lower id
  expect_distribution(kSmall, {.top_k = 100});
}
TEST(Sampler, TopP) {
  expect_distribution(kSmall, {.top_p = 0.6f});
  expect_distribution(kSmall, {.top_p = 0.95f});
}
TEST(Sampler, MinP) {
  expect_distribution(kSmall, {.min_p = 0.3f});
}
TEST(Sampler, AllFilters) {
  expect_distribution(kSmall, {.temperature = 1.4f, .top_k = 7, .top_p = 0.9f, .min_p = 0.25f});
  expect_distribution(kSmall, {.temperature = 1.4f, .top_p = 0.9f, .min_p = 0.25f});
}

TEST(Sampler, OneTokenAlwaysStays) {
  Row row(kSmall);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(row.pick({.top_p = 0.0f}, seed), 3);
    EXPECT_EQ(row.pick({.min_p = 1.0f}, seed), 3);
    EXPECT_EQ(row.pick({.top_k = 1}, seed), 3);
    EXPECT_EQ(row.pick({.temperature = 1e-40f}, seed), 3);
    EXPECT_EQ(row.pick({.top_k = 5, .top_p = 0.0f}, seed), 3);
  }
}

TEST(Sampler, AgreesWithAFullSortOnALargeVocabulary) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(5003);
  for (float& logit : logits) logit = std::round(normal(random) * 4.0f) / 4.0f;  // many ties
  const SamplingParams cases[] = {
      {.top_k = 50},    {.top_k = 700, .top_p = 0.8f},
      {.top_p = 0.9f},  {.temperature = 2.0f, .top_p = 0.99f},
      {.min_p = 0.01f}, {.temperature = 0.8f, .top_p = 0.97f, .min_p = 0.002f},
  };
  for (const SamplingParams& params : cases) {
    const std::vector<double> expected = reference_distribution(logits, params);
    Row row(logits);
    // Every token that is drawn may be drawn, and the mass of drawn tokens is nearly all.
    double seen = 0.0;
    for (const auto& [id, count] : row.histogram(params, 1500)) {
      ASSERT_GT(expected[static_cast<std::size_t>(id)], 0.0) << "token " << id;
      seen += expected[static_cast<std::size_t>(id)];
    }
    EXPECT_GT(seen, 0.5);
  }
}

TEST(Sampler, GreedyTakesTheLowestIdOfEquals) {
  EXPECT_EQ(Row({0.0f, 5.0f, 1.0f, 5.0f}).pick(greedy_choice()), 1);
  std::vector<float> wide(1000, -1.0f);
  wide[700] = wide[900] = 4.0f;
  EXPECT_EQ(Row(wide).pick(greedy_choice()), 700);
}

TEST(Sampler, NeverSampledTokensAreNotChosen) {
  const auto odd = [](TokenId id) { return id % 2 == 1; };
  Row row({0.0f, 50.0f, 1.0f, 40.0f, 0.5f}, odd);
  EXPECT_EQ(row.pick(greedy_choice()), 2);
  const SamplingParams cases[] = {{}, {.top_k = 3}, {.top_p = 0.9f}, {.min_p = 0.1f}};
  for (const SamplingParams& params : cases)
    for (const auto& [id, count] : row.histogram(params, 300)) EXPECT_EQ(id % 2, 0);
  SamplingParams biased = greedy_choice();
  biased.logit_bias = {{1, 100.0f}};
  EXPECT_EQ(row.pick(biased), 2);
}

TEST(Sampler, NanIsNeverChosen) {
  Row row({kNan, 1.0f, kNan, 0.5f, -kInf});
  EXPECT_EQ(row.pick(greedy_choice()), 1);
  const SamplingParams cases[] = {{}, {.top_k = 4}, {.top_p = 0.99f}, {.min_p = 0.01f}};
  for (const SamplingParams& params : cases)
    for (const auto& [id, count] : row.histogram(params, 300)) EXPECT_TRUE(id == 1 || id == 3);
}

TEST(Sampler, NothingToChooseIsAnError) {
  for (float value : {kNan, -kInf, kInf}) {
    Row row(std::vector<float>(40, value));
    for (const TokenChoice& choice :
         {TokenChoice{}, TokenChoice{.temperature = 1.0f}, TokenChoice{.given = 3, .n_top = 2}}) {
      const ChosenToken none = row.chosen(choice);
      EXPECT_EQ(none.id, kNoToken);
      EXPECT_EQ(no_token_error(none).code, ErrorCode::internal);
      EXPECT_NE(no_token_error(none).message.find("the largest is"), std::string::npos);
    }
  }
}

TEST(Sampler, DrawsDependOnSeedAndPositionOnly) {
  Row row(kSmall);
  Row other({9.0f, 8.0f});
  std::vector<TokenId> first;
  for (std::uint64_t position = 0; position < 64; ++position)
    first.push_back(row.pick(SamplingParams{}, 42, position));
  int different_seed = 0;
  for (std::uint64_t position = 64; position-- > 0;) {
    other.pick(SamplingParams{}, 7, position);
    EXPECT_EQ(row.pick(SamplingParams{}, 42, position), first[position]);
    different_seed += row.pick(SamplingParams{}, 43, position) != first[position] ? 1 : 0;
  }
  EXPECT_GT(different_seed, 20);
}

TEST(Sampler, Bias) {
  SamplingParams params = greedy_choice();
  params.logit_bias = {{2, 3.0f}, {3, -100.0f}};
  EXPECT_EQ(Row(kSmall).pick(params), 2);
}

TEST(Sampler, RepetitionPenaltyCountsTheWindowWithThePrompt) {
  SamplingParams params = greedy_choice();
  params.repetition_penalty = 2.0f;
  params.repetition_window = 2;
  Row row({3.0f, 2.0f, 1.0f, -1.0f});
  SamplerState state(params, 1);
  EXPECT_EQ(row.pick(state), 0);
  state.record_prompt(0);  // 1.5
  EXPECT_EQ(row.pick(state), 1);
  state.record(1);  // 1.5 and 1.0
  EXPECT_EQ(row.pick(state), 0);
  state.record(1);  // token 0 left the window; a token that stands twice is penalised once
  EXPECT_EQ(row.pick(state), 0);
  Row negative({-1.0f, -1.5f});
  SamplerState both(params, 1);
  both.record(0);  // a negative logit is multiplied: -2
  EXPECT_EQ(negative.pick(both), 1);
}

TEST(Sampler, FrequencyAndPresenceCountGeneratedTokensOnly) {
  SamplingParams frequency = greedy_choice();
  frequency.frequency_penalty = 0.4f;
  Row row({3.0f, 2.0f});
  SamplerState state(frequency, 1);
  for (int i = 0; i < 5; ++i) state.record_prompt(0);
  EXPECT_EQ(row.pick(state), 0);
  state.record(0);
  state.record(0);
  EXPECT_EQ(row.pick(state), 0);  // 2.2
  state.record(0);
  EXPECT_EQ(row.pick(state), 1);  // 1.8

  SamplingParams presence = greedy_choice();
  presence.presence_penalty = 0.9f;
  SamplerState once(presence, 1);
  for (int i = 0; i < 9; ++i) once.record(0);
  EXPECT_EQ(row.pick(once), 0);  // 2.1 however often
}

TEST(Sampler, LogprobsAreOfTheRawRow) {
  const auto never = [](TokenId id) { return id == 3; };
  Row row(kSmall, never);
  double sum = 0.0;
  for (float logit : kSmall) sum += std::exp(static_cast<double>(logit));
  const ChosenToken scored = row.scored(0, 3);
  EXPECT_NEAR(scored.logprob, 1.0 - std::log(sum), 1e-5);
  ASSERT_EQ(scored.top.size(), 3u);
  EXPECT_EQ(scored.top[0].id, 4);  // 3 is larger but is never sampled; of 4 and 5 the lower first
  EXPECT_EQ(scored.top[1].id, 5);
  EXPECT_EQ(scored.top[2].id, 9);
  EXPECT_NEAR(scored.top[2].logprob, 1.1 - std::log(sum), 1e-5);
  EXPECT_TRUE(row.scored(0, 0).top.empty());
  EXPECT_EQ(Row({1.0f, kNan}).scored(1, 0).logprob, -kInf);
}

TEST(SamplingParams, RangesAreChecked) {
  EXPECT_TRUE(validate(SamplingParams{}));
  const auto message = [](const SamplingParams& params) {
    const Status status = validate(params);
    return status ? std::string("valid") : status.error().message;
  };
  EXPECT_EQ(message({.temperature = 5.5f}), "temperature is 5.5; it must be from 0 to 5");
  EXPECT_EQ(message({.temperature = kNan}), "temperature is nan; it must be from 0 to 5");
  EXPECT_NE(message({.temperature = -0.1f}), "valid");
  EXPECT_EQ(message({.top_k = -2}), "top_k is -2; it must be positive, or 0 for off");
  EXPECT_NE(message({.top_p = 1.01f}), "valid");
  EXPECT_NE(message({.top_p = kNan}), "valid");
  EXPECT_NE(message({.min_p = -0.01f}), "valid");
  EXPECT_NE(message({.repetition_penalty = 0.0f}), "valid");
  EXPECT_NE(message({.repetition_penalty = kNan}), "valid");
  EXPECT_NE(message({.repetition_window = -1}), "valid");
  EXPECT_NE(message({.frequency_penalty = 2.1f}), "valid");
  EXPECT_NE(message({.presence_penalty = -2.1f}), "valid");
  SamplingParams bias;
  bias.logit_bias = {{5, 100.5f}};
  EXPECT_EQ(message(bias), "logit_bias of token 5 is 100.5; it must be from -100 to 100");
  bias.logit_bias = {{-1, 1.0f}};
  EXPECT_EQ(message(bias), "logit_bias names token -1; ids begin at 0");
  bias.logit_bias = {{5, kNan}};
  EXPECT_NE(message(bias), "valid");
}

}  // namespace
}  // namespace tessera
