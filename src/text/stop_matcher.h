// StopMatcher: ends a text stream at the first stop string, however the stream is cut.
//
//   TESSERA_ASSIGN(StopMatcher stops, StopMatcher::create({"\n\n", "END"}));
//   StopMatcher::Output out = stops.feed(piece);
//   send(out.text);
//   if (out.stop) finish(stops.strings()[*out.stop]);
//   ...
//   send(stops.flush());   // when the stream ends without a stop string
//
// feed() returns what may be shown now and keeps back the longest end of the stream that a stop
// string begins with. The stop string that is complete first counts; of several that are complete
// at the same byte, the longest. It is not part of the text, and all that follows it is dropped.
// Time is linear in the bytes fed, times the number of stop strings. One object belongs to one
// stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tessera::text {

class StopMatcher {
 public:
  static constexpr std::size_t kMaxStrings = 16;
  static constexpr std::size_t kMaxBytes = 64 * 1024;  // of one string

  struct Output {
    std::string text;
    std::optional<std::size_t> stop;  // index into strings()
  };

  StopMatcher() = default;  // no stop strings: everything passes
  static Result<StopMatcher> create(std::vector<std::string> strings);

  Output feed(std::string_view piece);
  std::string flush();  // the rest; the object may be used for another stream

  bool stopped() const { return stopped_; }
  const std::vector<std::string>& strings() const { return strings_; }

 private:
  // One Knuth-Morris-Pratt automaton per string.
  struct Automaton {
    std::vector<std::uint32_t> border;  // of each prefix: its longest proper border
    std::uint32_t matched = 0;          // bytes of the string that the stream ends in
  };

  std::vector<std::string> strings_;
  std::vector<Automaton> automata_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tessera::text
