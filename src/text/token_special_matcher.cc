#include "text/token_special_matcher.h"

#include "base/check.h"

namespace tessera::text {

std::uint32_t SpecialMatcher::step(std::uint32_t first, std::uint8_t byte) const {
  std::uint32_t node = first;
  while (node != 0 && nodes_[node].byte != byte) node = nodes_[node].sibling;
  return node;
}

void SpecialMatcher::add(std::string_view token, TokenId id) {
  CHECK(!token.empty());
  const auto append = [&](std::uint8_t byte, std::uint32_t sibling) {
    nodes_.push_back(Node{0, sibling, -1, byte});
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  };
  const auto lead = static_cast<std::uint8_t>(token[0]);
  if (roots_[lead] == 0) roots_[lead] = append(lead, 0);
  std::uint32_t node = roots_[lead];
  for (const char c : token.substr(1)) {
    const auto byte = static_cast<std::uint8_t>(c);
    std::uint32_t next = step(nodes_[node].child, byte);
    if (next == 0) {
      next = append(byte, nodes_[node].child);
      nodes_[node].child = next;
    }
    node = next;
  }
  nodes_[node].id = id;
}

std::optional<SpecialMatcher::Match> SpecialMatcher::find(std::string_view text, std::size_t from,
                                                          std::size_t to) const {
  for (std::size_t begin = from; begin < to; ++begin) {
    std::uint32_t node = roots_[static_cast<std::uint8_t>(text[begin])];
    std::optional<Match> longest;
    for (std::size_t end = begin + 1; node != 0; ++end) {
      if (nodes_[node].id >= 0) longest = Match{begin, end, nodes_[node].id};
      if (end == to) break;
      node = step(nodes_[node].child, static_cast<std::uint8_t>(text[end]));
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace tessera::text
