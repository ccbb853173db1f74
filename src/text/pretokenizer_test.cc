#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.h"

namespace tessera::text {
namespace {

using Strings = std::vector<std::string>;

Strings cut(std::string_view name, std::string_view text) {
  Result<Pretokenizer> pretokenizer = Pretokenizer::create(name);
  CHECK(pretokenizer.ok(), "{}", pretokenizer.error().message);
  Pretokenizer::Words words(*pretokenizer, text);
  Strings out;
  while (const std::optional<std::string_view> word = words.next()) out.emplace_back(*word);
  return out;
}

TEST(Pretokenizer, CutsLikeQwen2) {
  EXPECT_EQ(cut("qwen2", "Hello world"), (Strings{"Hello", " world"}));
  EXPECT_EQ(cut("qwen2", "I'LL don't 'x"), (Strings{"I", "'LL", " don", "'t", " '", "x"}));
  EXPECT_EQ(cut("qwen2", "a1234"), (Strings{"a", "1", "2", "3", "4"}));
  EXPECT_EQ(cut("qwen2", "x   y"), (Strings{"x", "  ", " y"}));
  EXPECT_EQ(cut("qwen2", "x  \n\n  y  "), (Strings{"x", "  \n\n", " ", " y", "  "}));
  EXPECT_EQ(cut("qwen2", "f(x);\r\n\ty"), (Strings{"f", "(x", ");\r\n", "\ty"}));
  EXPECT_EQ(cut("qwen2", ""), Strings{});
}

TEST(Pretokenizer, DiffersInCombiningMarks) {
  EXPECT_EQ(cut("qwen2", "ae\u0301b"), (Strings{"ae", "\u0301b"}));
  EXPECT_EQ(cut("qwen35", "ae\u0301b"), (Strings{"ae\u0301b"}));
}

TEST(Pretokenizer, CutsNewlinesFirstForLaguna) {
  EXPECT_EQ(cut("laguna", "x; \n\ny"), (Strings{"x", ";", " ", "\n\n", "y"}));
  EXPECT_EQ(cut("qwen2", "x; \n\ny"), (Strings{"x", ";", " \n\n", "y"}));
  EXPECT_EQ(cut("laguna", "a);\nb"), (Strings{"a", ");", "\n", "b"}));
}

TEST(Pretokenizer, TakesUnicodesBlanksAndNoOthers) {
  EXPECT_EQ(cut("qwen2", "a\u3000\u3000b"), (Strings{"a", "\u3000", "\u3000b"}));
  EXPECT_EQ(cut("qwen2", "!\u180E!"), (Strings{"!\u180E!"}));  // a format character
  EXPECT_EQ(cut("qwen2", "!\u0085!"), (Strings{"!", "\u0085", "!"}));
}

TEST(Pretokenizer, KeepsIllFormedBytesApart) {
  EXPECT_EQ(cut("qwen2", "ab\xFF\xC3 cd\xE4\xB8"), (Strings{"ab", "\xFF\xC3", " cd", "\xE4\xB8"}));
  EXPECT_EQ(cut("laguna", "\xED\xA0\x80\n"), (Strings{"\xED\xA0\x80", "\n"}));
  EXPECT_EQ(cut("qwen2", "\xC0\x80"), (Strings{"\xC0\x80"}));
}

TEST(Pretokenizer, CutsLongRunsWithoutGivingUp) {
  const std::size_t n = 10'000'000;
  for (const char c : {'a', '!', '\n', '\xFF'}) {
    const Strings words = cut("qwen35", std::string(n, c));
    ASSERT_EQ(words.size(), 1u) << c;
    EXPECT_EQ(words[0].size(), n);
  }
  const Strings blanks = cut("qwen35", std::string(n, ' ') + "x\n");
  EXPECT_EQ(blanks.size(), 3u);
  EXPECT_EQ(blanks[1], " x");
}

TEST(Pretokenizer, RefusesOtherNames) {
  for (const std::string_view name : {"default", "llama-bpe", "", "Qwen2"}) {
    const Result<Pretokenizer> made = Pretokenizer::create(name);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, ErrorCode::unsupported);
    EXPECT_NE(made.error().message.find("qwen2, qwen35 and laguna"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::text
