// How vocabularies spell bytes as text: the byte-level alphabet, byte tokens and the escaped space.
//
// The byte-level alphabet gives each byte one printable character: the printable bytes of Latin-1
// (33-126, 161-172, 174-255) stand for themselves, the other 68 in byte order for U+0100 upward.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

inline constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581
inline constexpr char32_t kEscapedSpaceChar = 0x2581;

// The UTF-8 spelling of each byte in the byte-level alphabet.
const std::array<std::string, 256>& byte_level_alphabet();

// The byte that a character of the byte-level alphabet stands for.
std::optional<std::uint8_t> byte_of_alphabet(char32_t character);

// "<0x0A>" and back.
std::string spell_byte_token(std::uint8_t byte);
std::optional<std::uint8_t> parse_byte_token(std::string_view text);

// Appends the bytes that a byte-level token stands for; a token with a character outside the
// alphabet stands for its own text.
void append_byte_level(std::string_view token, std::string& out);
// Appends a token's text with each escaped space as a plain one.
void append_unescaped(std::string_view token, std::string& out);

}  // namespace tessera::text
