#include "text/detokenizer.h"

#include "text/token_utf8.h"

namespace tessera::text {

std::string Detokenizer::feed(std::string_view piece) {
  std::string bytes = std::move(held_);
  bytes.append(piece);
  held_.clear();
  const std::size_t plain = valid_utf8_end(bytes, 0);
  if (plain == bytes.size()) return bytes;
  std::string out = bytes.substr(0, plain);
  for (std::size_t at = plain; at < bytes.size();) {
    const Utf8Char c = next_char(bytes, at);
    if (c.truncated) {
      held_ = bytes.substr(at);
      break;
    }
    out.append(c.valid ? std::string_view(bytes).substr(at, c.length) : kReplacementCharacter);
    at += c.length;
  }
  return out;
}

std::string Detokenizer::flush() {
  const bool incomplete = !held_.empty();
  held_.clear();
  return std::string(incomplete ? kReplacementCharacter : std::string_view());
}

}  // namespace tessera::text
