// MergeTable: the merge rules of a byte-pair vocabulary, over symbols instead of strings.
//
// A symbol is a string that merging can meet: a token (symbol = its id) or an intermediate string
// that no token spells (symbol >= vocabulary size). A rule's rank is its place in the file; of
// equal pairs the last rule counts. Immutable; any thread may read.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocabulary.h"

namespace tessera::text {

using Symbol = std::uint32_t;
using Rank = std::uint32_t;

inline constexpr Symbol kNoSymbol = 0xFFFFFFFF;  // a string that no rule and no token knows
inline constexpr Rank kNoRank = 0xFFFFFFFF;

class MergeTable {
 public:
  static constexpr std::size_t kMaxMerges = std::size_t{1} << 22;

  static Result<MergeTable> create(const Vocabulary& vocabulary,
                                   std::span<const std::string> merges);

  // The rank of joining two symbols, kNoRank if no rule joins them. A rank names one pair.
  Rank rank(Symbol left, Symbol right) const {
    const std::uint64_t key = pack(left, right);
    for (std::size_t slot = hash(key) & mask_;; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].rank;
      if (slots_[slot].rank == kNoRank) return kNoRank;
    }
  }
  Symbol merged(Rank rank) const { return merged_[rank]; }
  std::size_t ranks() const { return merged_.size(); }

  // The symbol of one byte (byte-level vocabularies) or of one code point (the others).
  Symbol of_byte(std::uint8_t byte) const { return by_byte_[byte]; }
  Symbol of_char(char32_t c) const { return c < by_char_.size() ? by_char_[c] : kNoSymbol; }

  // Whether a rule joins a string that ends in `byte` to one that begins with an escaped space.
  bool joins_space_after(std::uint8_t byte) const { return joins_space_[byte]; }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Rank rank = kNoRank;  // kNoRank: the slot is free
  };
  class Interner;

  MergeTable() = default;
  void set(Symbol left, Symbol right, Rank rank);

  static std::uint64_t pack(Symbol left, Symbol right) {
    return (std::uint64_t{left} << 32) | right;
  }
  static std::size_t hash(std::uint64_t key) {
    key *= 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>(key ^ (key >> 32));
  }

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t mask_ = 0;
  std::vector<Symbol> merged_;  // by rank
  std::array<Symbol, 256> by_byte_{};
  std::vector<Symbol> by_char_;
  std::array<bool, 256> joins_space_{};
};

}  // namespace tessera::text
