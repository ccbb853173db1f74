#include "text/token_spelling.h"

#include <fmt/core.h>

#include "text/token_utf8.h"

namespace tessera::text {
namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr unsigned kRemapped = 68;

struct Alphabet {
  std::array<std::string, 256> spelling;
  std::array<std::uint8_t, kRemapped> remapped{};  // the byte of U+0100 + index

  Alphabet() {
    unsigned next = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
      unsigned character = byte;
      if (!stands_for_itself(byte)) {
        remapped[next] = static_cast<std::uint8_t>(byte);
        character = 0x100 + next++;
      }
      if (character < 0x80) {
        spelling[byte].push_back(static_cast<char>(character));
      } else {
        spelling[byte].push_back(static_cast<char>(0xC0 | (character >> 6)));
        spelling[byte].push_back(static_cast<char>(0x80 | (character & 0x3F)));
      }
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet kAlphabet;
  return kAlphabet;
}

}  // namespace

const std::array<std::string, 256>& byte_level_alphabet() {
  return alphabet().spelling;
}

std::optional<std::uint8_t> byte_of_alphabet(char32_t character) {
  if (character >= 0x100 && character < 0x100 + kRemapped)
    return alphabet().remapped[character - 0x100];
  if (character < 0x100 && stands_for_itself(static_cast<unsigned>(character)))
    return static_cast<std::uint8_t>(character);
  return std::nullopt;
}

std::string spell_byte_token(std::uint8_t byte) {
  return fmt::format("<0x{:02X}>", byte);
}

std::optional<std::uint8_t> parse_byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    unsigned digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<unsigned>(c - '0');
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<unsigned>(c - 'A') + 10;
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<unsigned>(c - 'a') + 10;
    } else {
      return std::nullopt;
    }
    value = value * 16 + digit;
  }
  return static_cast<std::uint8_t>(value);
}

void append_byte_level(std::string_view token, std::string& out) {
  const std::size_t before = out.size();
  for (std::size_t at = 0; at < token.size();) {
    const Utf8Char c = next_char(token, at);
    const std::optional<std::uint8_t> byte =
        c.valid ? byte_of_alphabet(c.code_point) : std::nullopt;
    if (!byte) {
      out.resize(before);
      out.append(token);
      return;
    }
    out.push_back(static_cast<char>(*byte));
    at += c.length;
  }
}

void append_unescaped(std::string_view token, std::string& out) {
  std::size_t at = 0;
  for (;;) {
    const std::size_t space = token.find(kEscapedSpace, at);
    out.append(token.substr(at, space - at));
    if (space == std::string_view::npos) return;
    out.push_back(' ');
    at = space + kEscapedSpace.size();
  }
}

}  // namespace tessera::text
