// What the bodies of several frames are made of: text for people, arrays of bytes.
#pragma once

#include <algorithm>
#include <string>

#include "base/result.h"
#include "worker/byte_codec.h"

namespace tessera::worker {

inline Error malformed(const char* what) {
  return Error::make(ErrorCode::invalid, "malformed {} body", what);
}

// As much of it as may travel.
inline std::span<const std::byte> sent_text(const std::string& text, std::size_t most) {
  return std::as_bytes(std::span(text)).first(std::min(text.size(), most));
}

// It goes to a log: a peer must not move the cursor or begin a line there.
inline std::string printable(std::span<const std::byte> text) {
  std::string made;
  for (const std::byte b : text) {
    const char c = static_cast<char>(b);
    made.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return made;
}

template <typename Array>
void read_array(ByteReader& in, Array& out) {
  const std::span<const std::byte> bytes = in.bytes(out.size());
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

}  // namespace tessera::worker
