#include "worker/token_wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "worker/job_layout.h"

namespace tessera::worker {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kVocabulary = 100;
const SampleableTokens kSampleable(90, [](TokenId id) { return id == 13; });

struct Read {
  std::vector<TokenChoice> choices;
  std::vector<LogitChange> changes;
  bool ok = false;
};

Read written_and_read(std::span<const TokenChoice> choices, std::span<const LogitChange> changes) {
  std::vector<std::byte> body;
  ByteWriter writer(body);
  write_choices(writer, {choices, changes});
  EXPECT_EQ(body.size(), choices.size() * kTokenChoiceBytes + changes.size() * kLogitChangeBytes);
  Read read;
  ByteReader in(body);
  read.ok = read_choices(in,
                         {static_cast<std::uint32_t>(choices.size()),
                          static_cast<std::uint32_t>(changes.size())},
                         kVocabulary, read.choices, read.changes)
                .ok();
  return read;
}

TEST(TokenWire, ChoicesComeAsTheyWent) {
  const std::vector<TokenChoice> choices = {{},
                                            {.given = 99, .n_top = 5},
                                            {.temperature = 0.7f,
                                             .top_k = 40,
                                             .top_p = 0.9f,
                                             .min_p = 0.05f,
                                             .uniform = 0.999,
                                             .n_top = kMostTopTokens,
                                             .n_changes = 2}};
  const std::vector<LogitChange> changes = {{.id = 0, .bias = -100.0f},
                                            {.id = 99, .penalty = 1.1f, .less = -2.0f}};
  const Read read = written_and_read(choices, changes);
  ASSERT_TRUE(read.ok);
  EXPECT_EQ(read.choices, choices);
  EXPECT_EQ(read.changes, changes);
}

TEST(TokenWire, ChoicesAreChecked) {
  const TokenChoice wrong[] = {{.given = -2},
                               {.given = kVocabulary},
                               {.temperature = -0.1f},
                               {.temperature = kInf},
                               {.temperature = kNan},
                               {.top_p = 1.1f},
                               {.top_p = kNan},
                               {.min_p = -0.1f},
                               {.uniform = 1.0},
                               {.uniform = -0.1},
                               {.uniform = std::numeric_limits<double>::quiet_NaN()},
                               {.n_top = -2},
                               {.n_top = kMostTopTokens + 1},
                               {.n_changes = 1},
                               {.n_changes = -1}};
  for (const TokenChoice& choice : wrong) EXPECT_FALSE(written_and_read({&choice, 1}, {}).ok);
  const LogitChange bad[] = {{.id = -1},        {.id = kVocabulary}, {.bias = kNan},
                             {.penalty = 0.0f}, {.penalty = kInf},   {.less = kInf}};
  const TokenChoice one{.n_changes = 1};
  for (const LogitChange& change : bad)
    EXPECT_FALSE(written_and_read({&one, 1}, {&change, 1}).ok) << change.id;
}

TEST(TokenWire, TooManyChangesOrTopTokensDoNotFit) {
  std::vector<LogitChange> changes(kMostLogitChanges);
  TokenChoice choice{.n_top = kMostTopTokens, .n_changes = kMostLogitChanges};
  EXPECT_TRUE(fits_wire({{&choice, 1}, changes}));
  changes.emplace_back();
  EXPECT_FALSE(fits_wire({{&choice, 1}, changes}));
  choice = {.n_top = kMostTopTokens + 1};
  EXPECT_FALSE(fits_wire({{&choice, 1}, {}}));
}

class Tokens : public ::testing::Test {
 protected:
  bool arrive() {
    std::vector<std::byte> body;
    encode_chosen(sent_, result_words(choices_), body);
    EXPECT_EQ(body.size(), sent_.size() * result_words(choices_) * 4);
    got_.assign(choices_.size(), {.id = 3, .top = {{1, -1.0f}}});
    return decode_chosen(body, choices_, kSampleable, kVocabulary, got_).ok();
  }

  std::vector<TokenChoice> choices_ = {{.n_top = 2}, {.given = 13, .n_top = 0}, {}};
  std::vector<ChosenToken> sent_ = {{.id = 5, .logprob = -0.5f, .top = {{5, -0.5f}, {8, -kInf}}},
                                    {.id = 13, .logprob = -kInf},
                                    {.id = 0}};
  std::vector<ChosenToken> got_;
};

TEST_F(Tokens, ComeAsTheyWent) {
  ASSERT_TRUE(arrive());
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    EXPECT_EQ(got_[i].id, sent_[i].id);
    EXPECT_EQ(got_[i].logprob, sent_[i].logprob);
    ASSERT_EQ(got_[i].top.size(), sent_[i].top.size());
    for (std::size_t k = 0; k < sent_[i].top.size(); ++k) {
      EXPECT_EQ(got_[i].top[k].id, sent_[i].top[k].id);
      EXPECT_EQ(got_[i].top[k].logprob, sent_[i].top[k].logprob);
    }
  }
}

TEST_F(Tokens, ARowWithoutOneSaysItsLargestLogit) {
  for (const float largest : {kInf, -kInf, kNan}) {
    sent_[0] = {.id = kNoToken, .largest = largest};
    ASSERT_TRUE(arrive());
    EXPECT_EQ(got_[0].id, kNoToken);
    EXPECT_TRUE(got_[0].top.empty());
  }
  sent_[0].largest = 1.0f;  // then there is one
  EXPECT_FALSE(arrive());
}

TEST_F(Tokens, AreChecked) {
  const std::vector<ChosenToken> right = sent_;
  const auto refused = [&](auto change) {
    sent_ = right;
    change(sent_);
    return !arrive();
  };
  EXPECT_TRUE(refused([](auto& s) { s[0].id = 13; }));  // never sampled
  EXPECT_TRUE(refused([](auto& s) { s[0].id = 95; }));  // not in the vocabulary
  EXPECT_TRUE(refused([](auto& s) { s[0].id = -7; }));
  EXPECT_TRUE(refused([](auto& s) { s[1].id = 14; }));  // another was given
  EXPECT_TRUE(refused([](auto& s) { s[0].logprob = 0.5f; }));
  EXPECT_TRUE(refused([](auto& s) { s[0].logprob = kNan; }));
  EXPECT_TRUE(refused([](auto& s) { s[0].top[1].id = kVocabulary; }));
  EXPECT_TRUE(refused([](auto& s) { s[0].top[1].logprob = kNan; }));
  EXPECT_TRUE(refused([](auto& s) { s[2].top = {{1, -1.0f}}; }));  // nobody asked
}

}  // namespace
}  // namespace tessera::worker
