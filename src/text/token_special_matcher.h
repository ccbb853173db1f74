// SpecialMatcher: finds whole special tokens in a text, leftmost first and the longest of those
// that start at one place.
//
// A byte trie; find() costs O(1) a byte where no special token starts and at most the length of the
// longest token where one might. Immutable after the last add(); any thread may find().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace tessera::text {

class SpecialMatcher {
 public:
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    TokenId id = 0;
  };

  void add(std::string_view token, TokenId id);  // token is not empty; the last of equals wins

  // The first match that lies wholly in text[from, to).
  std::optional<Match> find(std::string_view text, std::size_t from, std::size_t to) const;

 private:
  struct Node {
    std::uint32_t child = 0;    // first child, 0: none
    std::uint32_t sibling = 0;  // next child of the same parent, 0: none
    TokenId id = -1;            // the token that ends here
    std::uint8_t byte = 0;
  };

  std::uint32_t step(std::uint32_t first, std::uint8_t byte) const;

  std::array<std::uint32_t, 256> roots_{};
  std::vector<Node> nodes_{1};  // node 0 is never used: 0 means none
};

}  // namespace tessera::text
