// Detokenizer: turns the pieces of a token stream into text, never splitting a character.
//
//   Detokenizer detokenizer;
//   send(detokenizer.feed(vocabulary.piece(id)));   // for each token
//   send(detokenizer.flush());                      // at the end
//
// What comes out is always well-formed UTF-8: ill-formed bytes become U+FFFD, one for each maximal
// subpart, as soon as they are known to be ill-formed. At most three bytes are held back. The text
// does not depend on how the bytes were cut into pieces.
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

class Detokenizer {
 public:
  std::string feed(std::string_view piece);
  std::string flush();  // the rest; the object may be used for another stream

  std::size_t held_bytes() const { return held_.size(); }

 private:
  std::string held_;  // the beginning of a character
};

}  // namespace tessera::text
