// Decoding of UTF-8 that may be broken. Used by everything between bytes and tokens.
//
// next_char() never fails: an ill-formed sequence is reported as one invalid unit whose length is
// the "maximal subpart" of the Unicode Standard (section 3.9), at least one byte. Surrogates,
// overlong forms and code points above U+10FFFF are invalid.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Char {
  char32_t code_point = 0;  // meaningless unless valid
  std::size_t length = 0;   // bytes
  bool valid = false;
  bool truncated = false;  // invalid only because the text ends inside the character
};

// The unit that starts at `at`, which must be less than text.size().
inline Utf8Char next_char(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(at);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {0, 1, false, false};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code_point = lead & (0x7Fu >> length);
  // The second byte's range is narrower after some leads: no overlong form, surrogate or overflow.
  std::uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  std::uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {0, i, false, true};
    const std::uint8_t next = byte(at + i);
    if (next < low || next > high) return {0, i, false, false};
    code_point = (code_point << 6) | (next & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {code_point, length, true, false};
}

// The first position at or after `from` where the text is not ASCII.
inline std::size_t skip_ascii(std::string_view text, std::size_t from) {
  const auto plain = [](char c) { return static_cast<std::uint8_t>(c) < 0x80; };
  constexpr std::size_t kBlock = 32;
  while (from + kBlock <= text.size()) {
    std::uint8_t any = 0;
    for (std::size_t i = 0; i < kBlock; ++i)
      any = static_cast<std::uint8_t>(any | static_cast<std::uint8_t>(text[from + i]));
    if (any >= 0x80) break;
    from += kBlock;
  }
  while (from < text.size() && plain(text[from])) ++from;
  return from;
}

// The end of the stretch from `from` on that is well-formed UTF-8.
inline std::size_t valid_utf8_end(std::string_view text, std::size_t from) {
  while ((from = skip_ascii(text, from)) < text.size()) {
    const Utf8Char c = next_char(text, from);
    if (!c.valid) break;
    from += c.length;
  }
  return from;
}

}  // namespace tessera::text
