// Server-sent events: the text of one event or comment.
#pragma once

#include <string>
#include <string_view>

namespace tessera::server {

// `data` must hold no line break; JSON on one line has none.
inline std::string sse_data(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 8);
  out += "data: ";
  out += data;
  out += "\n\n";
  return out;
}

inline constexpr std::string_view kSsePing = ": ping\n\n";

}  // namespace tessera::server
