#include "text/jinja/chars.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>

namespace tessera::jinja {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

using CharMapping = utf8proc_int32_t (*)(utf8proc_int32_t);

char32_t mapped(CharMapping mapping, char32_t code) {
  return static_cast<char32_t>(mapping(static_cast<utf8proc_int32_t>(code)));
}

// Letters whose capital form is several letters; the mapping tables know single letters only.
std::string_view expanded_upper(char32_t code) {
  constexpr std::string_view kLigatures[] = {"FF", "FI", "FL", "FFI", "FFL", "ST", "ST"};
  if (code == 0xDF) return "SS";
  if (code >= 0xFB00 && code <= 0xFB06) return kLigatures[code - 0xFB00];
  return {};
}

std::string_view expanded_title(char32_t code) {
  constexpr std::string_view kLigatures[] = {"Ff", "Fi", "Fl", "Ffi", "Ffl", "St", "St"};
  if (code == 0xDF) return "Ss";
  if (code >= 0xFB00 && code <= 0xFB06) return kLigatures[code - 0xFB00];
  return {};
}

bool is_cased(char32_t code) {
  return is_upper(code) || is_lower(code) || is_title(code);
}

// The apostrophes, marks and modifiers that the final-sigma rule looks through.
bool is_case_ignorable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x2019;
  }
}

// A capital sigma becomes the final form at the end of a word.
bool is_final_sigma(std::string_view bytes, std::size_t position, std::size_t size) {
  std::size_t before = position;
  bool cased_before = false;
  while (before > 0) {
    const Char previous = char_before(bytes, before);
    before -= previous.size;
    if (is_case_ignorable(previous.code)) continue;
    cased_before = is_cased(previous.code);
    break;
  }
  if (!cased_before) return false;
  for (std::size_t after = position + size; after < bytes.size();) {
    const Char next = char_at(bytes, after);
    after += next.size;
    if (!is_case_ignorable(next.code)) return !is_cased(next.code);
  }
  return true;
}

void append_lower(std::string& out, std::string_view bytes, std::size_t position, Char c) {
  if (c.code == 0x3A3)
    append_char(out, is_final_sigma(bytes, position, c.size) ? 0x3C2 : 0x3C3);
  else if (c.code == 0x130)
    out += "i\u0307";
  else
    append_char(out, mapped(utf8proc_tolower, c.code));
}

void append_upper(std::string& out, char32_t code) {
  const std::string_view expanded = expanded_upper(code);
  if (expanded.empty())
    append_char(out, mapped(utf8proc_toupper, code));
  else
    out += expanded;
}

void append_title(std::string& out, char32_t code) {
  const std::string_view expanded = expanded_title(code);
  if (expanded.empty())
    append_char(out, mapped(utf8proc_totitle, code));
  else
    out += expanded;
}

// Calls append(out, position, char) for each character; invalid bytes are kept as they are.
template <typename Append>
std::string rewrite(std::string_view bytes, Append append) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t position = 0; position < bytes.size();) {
    const Char c = char_at(bytes, position);
    if (c.code == kReplacement && c.size == 1)
      out += bytes[position];
    else
      append(out, position, c);
    position += c.size;
  }
  return out;
}

}  // namespace

Char char_at(std::string_view bytes, std::size_t position) {
  const auto first = static_cast<unsigned char>(bytes[position]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t code = 0;
  const auto rest = static_cast<utf8proc_ssize_t>(bytes.size() - position);
  const utf8proc_ssize_t size = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(bytes.data() + position), rest, &code);
  if (size <= 0) return {kReplacement, 1};
  return {static_cast<char32_t>(code), static_cast<std::size_t>(size)};
}

Char char_before(std::string_view bytes, std::size_t position) {
  for (std::size_t size = 1; size <= std::min<std::size_t>(4, position); ++size) {
    const auto byte = static_cast<unsigned char>(bytes[position - size]);
    if ((byte & 0xC0) == 0x80) continue;
    const Char c = char_at(bytes, position - size);
    if (c.size == size) return c;
    break;
  }
  return {kReplacement, 1};
}

std::size_t count_chars(std::string_view bytes) {
  std::size_t count = 0;
  for (std::size_t position = 0; position < bytes.size(); ++count)
    position += char_at(bytes, position).size;
  return count;
}

std::size_t offset_of(std::string_view bytes, std::size_t index) {
  std::size_t position = 0;
  for (; index > 0 && position < bytes.size(); --index) position += char_at(bytes, position).size;
  return position;
}

void append_char(std::string& out, char32_t code) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(size));
}

bool valid_utf8(std::string_view bytes) {
  for (std::size_t position = 0; position < bytes.size();) {
    const Char c = char_at(bytes, position);
    if (c.code == kReplacement && c.size == 1) return false;
    position += c.size;
  }
  return true;
}

bool is_space(char32_t code) {
  if (code < 0x80) return (code >= 0x9 && code <= 0xD) || (code >= 0x1C && code <= 0x20);
  switch (category(code)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      return code == 0x85;
  }
}

bool is_alpha(char32_t code) {
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t code) {
  return is_decimal(code) || code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 ||
         (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089) ||
         (code >= 0x2460 && code <= 0x2468);
}

bool is_numeric(char32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool is_upper(char32_t code) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(code)) != 0;
}
bool is_lower(char32_t code) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(code)) != 0;
}
bool is_title(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LT;
}

bool is_name_start(char32_t code) {
  return code == '_' || is_alpha(code) || category(code) == UTF8PROC_CATEGORY_NL;
}

bool is_name_part(char32_t code) {
  const auto c = category(code);
  return is_name_start(code) || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_MN ||
         c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_PC;
}

bool is_printable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

std::string upper(std::string_view bytes) {
  return rewrite(bytes, [](std::string& out, std::size_t, Char c) { append_upper(out, c.code); });
}

std::string lower(std::string_view bytes) {
  return rewrite(bytes, [bytes](std::string& out, std::size_t position, Char c) {
    append_lower(out, bytes, position, c);
  });
}

std::string title(std::string_view bytes) {
  bool in_word = false;
  return rewrite(bytes, [&](std::string& out, std::size_t position, Char c) {
    if (in_word)
      append_lower(out, bytes, position, c);
    else
      append_title(out, c.code);
    in_word = is_cased(c.code);
  });
}

std::string capitalize(std::string_view bytes) {
  return rewrite(bytes, [bytes](std::string& out, std::size_t position, Char c) {
    if (position == 0)
      append_title(out, c.code);
    else
      append_lower(out, bytes, position, c);
  });
}

std::string swap_case(std::string_view bytes) {
  return rewrite(bytes, [bytes](std::string& out, std::size_t position, Char c) {
    if (is_upper(c.code))
      append_lower(out, bytes, position, c);
    else
      append_upper(out, c.code);
  });
}

std::string case_fold(std::string_view bytes) {
  return rewrite(bytes, [](std::string& out, std::size_t, Char c) {
    const std::string_view expanded = expanded_upper(c.code);
    if (!expanded.empty())
      out += lower(expanded);
    else
      append_char(out, c.code == 0x3C2 ? 0x3C3 : mapped(utf8proc_tolower, c.code));
  });
}

std::size_t find(std::string_view bytes, std::string_view needle, std::size_t from) {
  if (from > bytes.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* hit = memmem(bytes.data() + from, bytes.size() - from, needle.data(), needle.size());
  if (hit == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(hit) - bytes.data());
}

std::size_t rfind(std::string_view bytes, std::string_view needle) {
  if (needle.size() > bytes.size()) return std::string_view::npos;
  if (needle.empty()) return bytes.size();
  const std::string reversed(bytes.rbegin(), bytes.rend());
  const std::string wanted(needle.rbegin(), needle.rend());
  const std::size_t hit = find(reversed, wanted);
  return hit == std::string_view::npos ? hit : bytes.size() - hit - needle.size();
}

}  // namespace tessera::jinja
