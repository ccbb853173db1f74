// Characters of UTF-8 text as Python's str sees them: code points, their classes, case mapping.
//
// A byte that is not part of valid UTF-8 counts as one character, so nothing here can fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::jinja {

struct Char {
  char32_t code = 0;
  std::size_t size = 1;  // bytes
};

// The character at `position`, which must be inside `bytes`.
Char char_at(std::string_view bytes, std::size_t position);
// The character that ends before `position`, which must be positive.
Char char_before(std::string_view bytes, std::size_t position);
std::size_t count_chars(std::string_view bytes);
// The byte offset of character number `index`, or the size if there are fewer.
std::size_t offset_of(std::string_view bytes, std::size_t index);
void append_char(std::string& out, char32_t code);
bool valid_utf8(std::string_view bytes);

bool is_space(char32_t code);
bool is_alpha(char32_t code);
bool is_decimal(char32_t code);  // str.isdecimal
bool is_digit(char32_t code);    // str.isdigit
bool is_numeric(char32_t code);  // str.isnumeric
bool is_upper(char32_t code);
bool is_lower(char32_t code);
bool is_title(char32_t code);
bool is_name_start(char32_t code);
bool is_name_part(char32_t code);
bool is_printable(char32_t code);

std::string upper(std::string_view bytes);
std::string lower(std::string_view bytes);
std::string title(std::string_view bytes);       // str.title
std::string capitalize(std::string_view bytes);  // first character in title case, rest lower
std::string swap_case(std::string_view bytes);
std::string case_fold(std::string_view bytes);

// Offset of the first (last) occurrence at or after `from`, or npos; linear time.
std::size_t find(std::string_view bytes, std::string_view needle, std::size_t from = 0);
std::size_t rfind(std::string_view bytes, std::string_view needle);

}  // namespace tessera::jinja
