#include "text/token_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "text/token_utf8.h"

namespace tessera::text {
namespace {

constexpr std::array<CodePointRange, 18> kStable = {{
    {0x0000, 0x02FF},    // Latin
    {0x0388, 0x0482},    // Greek, Cyrillic
    {0x048A, 0x0590},    // Cyrillic, Armenian
    {0x05D0, 0x05EA},    // Hebrew letters
    {0x0620, 0x064A},    // Arabic letters
    {0x0904, 0x093B},    // Devanagari letters
    {0x0E01, 0x0E37},    // Thai
    {0x1780, 0x17D1},    // Khmer
    {0x2002, 0x20CF},    // punctuation, currency
    {0x2190, 0x2328},    // arrows, mathematics
    {0x232B, 0x2ADB},    // technical, box drawing, dingbats
    {0x3000, 0x3029},    // CJK punctuation
    {0x3030, 0x3098},    // Hiragana
    {0x309B, 0xA66E},    // Katakana, CJK ideographs, Yi
    {0xAC00, 0xD7A3},    // Hangul syllables
    {0xFE00, 0xFE0F},    // variation selectors
    {0xFF00, 0xFFEF},    // full-width forms
    {0x1F000, 0x1FAFF},  // emoji
}};

bool is_stable(char32_t c) {
  if (c <= kStable[0].last) return true;
  const auto after =
      std::upper_bound(kStable.begin(), kStable.end(), c,
                       [](char32_t x, const CodePointRange& r) { return x < r.first; });
  return c <= std::prev(after)->last;
}

// Canonical ordering: each run of combining marks sorted by class. utf8proc's own ordering is
// quadratic on hostile runs.
void order_marks(std::vector<utf8proc_int32_t>& chars) {
  const auto mark_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (auto begin = chars.begin(); begin != chars.end();) {
    if (mark_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, chars.end(), [&](utf8proc_int32_t c) { return mark_class(c) == 0; });
    std::stable_sort(begin, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return mark_class(a) < mark_class(b);
    });
    begin = end;
  }
}

// Appends NFC of `run`, which is well-formed.
void append_nfc(std::string_view run, std::string& out) {
  constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  std::vector<utf8proc_int32_t> chars;
  for (std::size_t at = 0; at < run.size();) {
    const Utf8Char c = next_char(run, at);
    at += c.length;
    std::array<utf8proc_int32_t, 16> parts;
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point), parts.data(),
                                static_cast<utf8proc_ssize_t>(parts.size()), kDecompose, &boundary);
    CHECK(n >= 0 && n <= static_cast<utf8proc_ssize_t>(parts.size()));
    chars.insert(chars.end(), parts.begin(), parts.begin() + n);
  }
  order_marks(chars);
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()), kCompose);
  CHECK(n >= 0);
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const utf8proc_ssize_t length =
        utf8proc_encode_char(chars[static_cast<std::size_t>(i)], bytes.data());
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(length));
  }
}

}  // namespace

std::span<const CodePointRange> nfc_stable_ranges() {
  return kStable;
}

std::optional<std::string> normalize_nfc(std::string_view text) {
  std::optional<std::string> out;
  std::size_t copied = 0;  // text before this is in *out
  std::size_t at = 0;
  while ((at = skip_ascii(text, at)) < text.size()) {
    Utf8Char c = next_char(text, at);
    if (!c.valid || is_stable(c.code_point)) {
      at += c.length;
      continue;
    }
    // A mark may compose with the character before it.
    std::size_t begin = at;
    while (begin > copied && (static_cast<std::uint8_t>(text[begin - 1]) & 0xC0) == 0x80) --begin;
    if (begin > copied) --begin;
    if (const Utf8Char before = next_char(text, begin);
        !before.valid || begin + before.length != at)
      begin = at;
    while (at < text.size()) {
      c = next_char(text, at);
      if (!c.valid || is_stable(c.code_point)) break;
      at += c.length;
    }
    if (!out) out.emplace();
    out->append(text.substr(copied, begin - copied));
    append_nfc(text.substr(begin, at - begin), *out);
    copied = at;
  }
  if (out) out->append(text.substr(copied));
  return out;
}

}  // namespace tessera::text
