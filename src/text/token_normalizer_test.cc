#include "text/token_normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "base/check.h"

namespace tessera::text {
namespace {

std::string encode(const std::vector<char32_t>& chars) {
  std::string out;
  for (const char32_t c : chars) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
  }
  return out;
}

std::string whole_text_form(const std::string& text, int form) {
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                          static_cast<utf8proc_ssize_t>(text.size()), &raw,
                                          static_cast<utf8proc_option_t>(form));
  CHECK(n >= 0);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  return {reinterpret_cast<const char*>(raw), static_cast<std::size_t>(n)};
}
constexpr int kNfc = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
constexpr int kNfd = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;

bool is_surrogate(char32_t c) {
  return c >= 0xD800 && c <= 0xDFFF;
}

TEST(NormalizeNfc, StableRangesAreStable) {
  std::set<std::string> second;  // what composes with a character before it
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (is_surrogate(c)) continue;
    const std::string text = encode({c});
    const std::string parts = whole_text_form(text, kNfd);
    if (parts == text || whole_text_form(text, kNfc) != text) continue;
    for (std::size_t at = 1; at < parts.size(); ++at) {
      if ((parts[at] & 0xC0) == 0x80) continue;
      std::size_t end = at + 1;
      while (end < parts.size() && (parts[end] & 0xC0) == 0x80) ++end;
      second.insert(parts.substr(at, end - at));
    }
  }
  EXPECT_TRUE(second.contains("\u0301"));
  char32_t previous = 0;
  for (const auto& [first, last] : nfc_stable_ranges()) {
    EXPECT_TRUE(first == 0 || first > previous);
    previous = last;
    for (char32_t c = first; c <= last; ++c) {
      const std::string text = encode({c});
      ASSERT_EQ(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class, 0)
          << std::hex << static_cast<unsigned>(c);
      ASSERT_EQ(whole_text_form(text, kNfc), text) << std::hex << static_cast<unsigned>(c);
      ASSERT_FALSE(second.contains(text)) << std::hex << static_cast<unsigned>(c);
    }
  }
}

TEST(NormalizeNfc, AgreesWithTheWholeTextForm) {
  const std::vector<std::pair<char32_t, char32_t>> ranges = {
      {0x20, 0x7E},     {0x300, 0x36F},   {0xC0, 0x17F},     {0x1100, 0x11FF}, {0xAC00, 0xD7A3},
      {0x900, 0xDFF},   {0x1E00, 0x1FFF}, {0x3040, 0x30FF},  {0x3099, 0x309A}, {0xF900, 0xFAFF},
      {0x2000, 0x2200}, {0x5B0, 0x5EA},   {0x11000, 0x11500}};
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::vector<char32_t> chars(random() % 40);
    for (char32_t& c : chars) {
      const auto& [low, high] = ranges[random() % ranges.size()];
      c = low + static_cast<char32_t>(random() % (high - low + 1));
    }
    const std::string text = encode(chars);
    ASSERT_EQ(normalize_nfc(text).value_or(text), whole_text_form(text, kNfc)) << text;
  }
}

TEST(NormalizeNfc, LeavesOrdinaryTextAlone) {
  EXPECT_FALSE(normalize_nfc("").has_value());
  EXPECT_FALSE(normalize_nfc("plain, r\u00E9sum\u00E9 \u4E2D\u6587 \U0001F680").has_value());
}

TEST(NormalizeNfc, KeepsIllFormedBytes) {
  EXPECT_EQ(normalize_nfc("e\u0301\xFF"
                          "e\u0301\xE4")
                .value(),
            "\u00E9\xFF\u00E9\xE4");
  EXPECT_EQ(normalize_nfc("e\xFF\u0301").value_or("e\xFF\u0301"), "e\xFF\u0301");
  EXPECT_EQ(normalize_nfc("\x80\u0301").value_or("\x80\u0301"), "\x80\u0301");
}

TEST(NormalizeNfc, OrdersLongRunsOfMarks) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += "\u0301\u0316";
  const std::string nfc = normalize_nfc(text).value();
  EXPECT_TRUE(nfc.starts_with("\u00E1\u0316\u0316"));
  EXPECT_TRUE(nfc.ends_with("\u0301\u0301"));
}

}  // namespace
}  // namespace tessera::text
