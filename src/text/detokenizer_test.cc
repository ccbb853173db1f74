#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/token_utf8.h"

namespace tessera::text {
namespace {

std::string all_at_once(std::string_view bytes) {
  Detokenizer detokenizer;
  std::string out = detokenizer.feed(bytes);
  out += detokenizer.flush();
  return out;
}

TEST(Detokenizer, HoldsAnUnfinishedCharacter) {
  Detokenizer detokenizer;
  EXPECT_EQ(detokenizer.feed("a\xF0\x9F"), "a");
  EXPECT_EQ(detokenizer.held_bytes(), 2u);
  EXPECT_EQ(detokenizer.feed("\x9A"), "");
  EXPECT_EQ(detokenizer.feed("\x80z"), "\U0001F680z");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, ReplacesIllFormedBytes) {
  EXPECT_EQ(all_at_once("a\xFF\xFE"
                        "b"),
            "a\uFFFD\uFFFDb");
  EXPECT_EQ(all_at_once("\xE4\xB8"), "\uFFFD");
  EXPECT_EQ(all_at_once("\xF0\x9F\x9A"
                        "A"),
            "\uFFFDA");
  EXPECT_EQ(all_at_once("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(all_at_once("\xC0\x80\xF5"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(all_at_once("\x80"), "\uFFFD");
}

TEST(Detokenizer, CanBeUsedAgainAfterFlush) {
  Detokenizer detokenizer;
  EXPECT_EQ(detokenizer.feed("\xC3"), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.feed("\xA9"), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, DoesNotDependOnTheCuts) {
  std::mt19937 random(17);
  const std::string good = "h\u00E9\u4E2D\U0001F680 \u0301x\u07FF\U0010FFFF";
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good;
    for (int k = round % 4; k > 0; --k)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const std::string expected = all_at_once(bytes);
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      Detokenizer detokenizer;
      std::string out = detokenizer.feed(std::string_view(bytes).substr(0, cut));
      EXPECT_EQ(valid_utf8_end(out, 0), out.size());
      EXPECT_LE(detokenizer.held_bytes(), 3u);
      out += detokenizer.feed(std::string_view(bytes).substr(cut));
      out += detokenizer.flush();
      ASSERT_EQ(out, expected) << cut;
    }
    Detokenizer bytewise;
    std::string out;
    for (const char c : bytes) out += bytewise.feed({&c, 1});
    out += bytewise.flush();
    ASSERT_EQ(out, expected);
    ASSERT_EQ(valid_utf8_end(out, 0), out.size());
  }
}

}  // namespace
}  // namespace tessera::text
