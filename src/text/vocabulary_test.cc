#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "text/tokenizer.h"
#include "text/vocab_toy.h"

namespace tessera::text {
namespace {

std::string refusal_of(const std::function<void(TokenizerSpec&)>& change,
                       TokenizerSpec spec = toy_byte_level_spec()) {
  change(spec);
  const Result<Tokenizer> made = Tokenizer::create(std::move(spec));
  return made.ok() ? "" : made.error().message;
}

TEST(TokenizerCreate, SaysWhichRuleIsBroken) {
  const std::string n = std::to_string(toy_byte_level_spec().tokens.size());
  EXPECT_EQ(refusal_of([](auto&) {}), "");
  EXPECT_EQ(refusal_of([](auto& s) { s.model = "llama"; }),
            "tokenizer model 'llama' is not supported; supported are gpt2 and gemma4");
  EXPECT_EQ(refusal_of([](auto& s) { s.pre_tokenizer = "default"; }),
            "pre-tokenizer 'default' is not supported; supported are qwen2, qwen35 and laguna");
  EXPECT_EQ(refusal_of([](auto& s) { s.tokens.clear(); }), "tokenizer has no tokens");
  EXPECT_EQ(refusal_of([](auto& s) { s.token_types.pop_back(); }),
            "tokenizer has " + std::to_string(toy_byte_level_spec().tokens.size() - 1) +
                " token types for " + n + " tokens; the numbers must be equal");
  EXPECT_EQ(refusal_of([](auto& s) { s.scores.resize(3); }),
            "tokenizer has 3 scores for " + n + " tokens; the numbers must be equal");
  EXPECT_EQ(refusal_of([](auto& s) { s.token_types[5] = 7; }),
            "token 5 has type 7; types are 1 to 6");
  EXPECT_EQ(refusal_of([](auto& s) { s.token_types[5] = -1; }),
            "token 5 has type -1; types are 1 to 6");
  EXPECT_EQ(refusal_of([](auto& s) { s.tokens[7].assign(10'000'000, 'x'); }),
            "token 7 has 10000000 bytes; at most 65536 are supported");
  EXPECT_EQ(
      refusal_of([](auto& s) { add_token(s, std::string(2000, 'x'), TokenType::user_defined); }),
      "special token " + n + " has 2000 bytes; at most 1024 are supported");
  EXPECT_EQ(refusal_of([](auto& s) { s.merges.push_back("ab"); }),
            "merge 7 is not two texts with a space between them");
  EXPECT_EQ(refusal_of([](auto& s) { s.add_bos = true; }),
            "tokenizer asks for a beginning-of-sequence token but names none");
  EXPECT_EQ(refusal_of([](auto& s) { s.tokens['a'] = "zz"; }),
            "tokenizer has neither a token for byte 0x61 nor an unknown token");
  EXPECT_EQ(refusal_of([](auto& s) { s.tokens['a'] = "zz", s.unknown_id = 0; }), "");
}

TEST(TokenizerCreate, RefusesIdsOutsideTheTable) {
  const auto size = static_cast<std::int64_t>(toy_byte_level_spec().tokens.size());
  for (const std::int64_t bad : {std::int64_t{-1}, size, std::int64_t{1} << 32, INT64_MIN}) {
    EXPECT_NE(refusal_of([&](auto& s) { s.bos_id = bad; }), "");
    EXPECT_NE(refusal_of([&](auto& s) { s.eos_id = bad; }), "");
    EXPECT_NE(refusal_of([&](auto& s) { s.eot_id = bad; }), "");
    EXPECT_NE(refusal_of([&](auto& s) { s.unknown_id = bad; }), "");
    EXPECT_NE(refusal_of([&](auto& s) { s.padding_id = bad; }), "");
    EXPECT_NE(refusal_of([&](auto& s) { s.extra_eog_ids = {0, bad}; }), "");
  }
  EXPECT_EQ(refusal_of([&](auto& s) { s.padding_id = size - 1; }), "");
}

TEST(Vocabulary, ToleratesEmptyAndEqualTokens) {
  TokenizerSpec spec = toy_byte_level_spec();
  const auto n = static_cast<TokenId>(spec.tokens.size());
  add_token(spec, "", TokenType::normal);
  add_token(spec, "", TokenType::control);
  add_token(spec, "twin", TokenType::normal);
  add_token(spec, "twin", TokenType::normal);
  add_token(spec, "\xFF\xFE", TokenType::normal);
  const Result<Tokenizer> made = Tokenizer::create(spec);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->vocabulary().find("twin"), n + 3);
  EXPECT_EQ(made->piece(n), "");
  EXPECT_EQ(made->piece(n + 4), "\xFF\xFE");
  EXPECT_EQ(made->encode("twin", {.parse_special = true}).size(), 4u);
}

TEST(Vocabulary, TreatsAbsentTypesAsNormal) {
  TokenizerSpec spec = toy_byte_level_spec();
  spec.token_types.clear();
  const Result<Tokenizer> made = Tokenizer::create(spec);
  ASSERT_TRUE(made.ok());
  // What ends a turn is a control token all the same, and a filler row is known by its name.
  EXPECT_EQ(made->encode("<|im_end|>", {.parse_special = true}).size(), 1u);
  EXPECT_GT(made->encode("<think>", {.parse_special = true}).size(), 1u);
  EXPECT_TRUE(made->is_never_sampled(made->vocabulary().size() - 1));
}

TEST(Vocabulary, NeverMergesIntoAControlToken) {
  TokenizerSpec spec = toy_byte_level_spec();
  spec.merges.push_back("x y");
  add_token(spec, "xy", TokenType::control);
  const Result<Tokenizer> made = Tokenizer::create(spec);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->encode("xy"), (std::vector<TokenId>{'x', 'y'}));
}

TEST(Vocabulary, FindsTheEndOfALagunaTurn) {
  TokenizerSpec spec = toy_byte_level_spec("laguna");
  const auto id = static_cast<TokenId>(spec.tokens.size());
  add_token(spec, "</assistant>", TokenType::user_defined);
  spec.extra_eog_ids = {3, 3};
  spec.eot_id = 4;
  const std::vector<TokenId> ends = {3, 4, static_cast<TokenId>(*spec.eos_id), id};
  const Result<Tokenizer> made = Tokenizer::create(spec);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->vocabulary().eog_ids(), ends);
  EXPECT_TRUE(made->is_eog(id));
}

// Not a benchmark: quadratic time on any of these would take hours.
#ifdef __SANITIZE_ADDRESS__  // sanitized.cmake
constexpr std::size_t kHuge = 100'000;
#else
constexpr std::size_t kHuge = 2'000'000;
#endif

TEST(Tokenizer, TakesHugeWordsInLinearTime) {
  const auto start = std::chrono::steady_clock::now();
  for (const bool escaped : {false, true}) {
    const Result<Tokenizer> made =
        Tokenizer::create(escaped ? toy_escaped_spec() : toy_byte_level_spec());
    ASSERT_TRUE(made.ok());
    std::string hello;
    while (hello.size() < 5 * kHuge) hello += "hello";
    EXPECT_EQ(made->decode(made->encode(hello)), hello);
    for (const char c : {'l', ' ', '\n', '\xFF', '<'}) {
      const std::string run(kHuge, c);
      std::string bytes;
      for (const TokenId id : made->encode(run, {.parse_special = true})) bytes += made->piece(id);
      EXPECT_EQ(bytes, run);
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(120));
}

}  // namespace
}  // namespace tessera::text
