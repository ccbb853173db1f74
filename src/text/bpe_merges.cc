#include "text/bpe_merges.h"

#include <bit>
#include <optional>
#include <unordered_map>

#include "text/token_spelling.h"
#include "text/token_utf8.h"

namespace tessera::text {

// Gives every string its symbol, a new one on first sight.
class MergeTable::Interner {
 public:
  explicit Interner(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  Symbol intern(const std::string& text) {
    if (const std::optional<Symbol> known = token(text)) return *known;
    const auto next =
        static_cast<Symbol>(static_cast<std::size_t>(vocabulary_.size()) + extra_.size());
    return extra_.try_emplace(text, next).first->second;
  }

  Symbol find(const std::string& text) const {
    if (const std::optional<Symbol> known = token(text)) return *known;
    const auto found = extra_.find(text);
    return found == extra_.end() ? kNoSymbol : found->second;
  }

  const std::unordered_map<std::string, Symbol>& extra() const { return extra_; }

 private:
  std::optional<Symbol> token(const std::string& text) const {
    const std::optional<TokenId> id = vocabulary_.find(text);
    if (!id || !vocabulary_.is_mergeable(*id)) return std::nullopt;
    return static_cast<Symbol>(*id);
  }

  const Vocabulary& vocabulary_;
  std::unordered_map<std::string, Symbol> extra_;
};

void MergeTable::set(Symbol left, Symbol right, Rank rank) {
  const std::uint64_t key = pack(left, right);
  std::size_t slot = hash(key) & mask_;
  while (slots_[slot].rank != kNoRank && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, rank};
}

Result<MergeTable> MergeTable::create(const Vocabulary& vocabulary,
                                      std::span<const std::string> merges) {
  if (merges.size() > kMaxMerges)
    return Error::make(ErrorCode::invalid, "tokenizer has {} merges; at most {} are supported",
                       merges.size(), kMaxMerges);
  MergeTable table;
  const std::size_t slots = std::bit_ceil(2 * merges.size() + 1);
  table.slots_.assign(slots, Slot{});
  table.mask_ = slots - 1;
  table.merged_.reserve(merges.size());

  Interner symbols(vocabulary);
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string& line = merges[i];
    const std::size_t space = line.find(' ', 1);
    if (line.empty() || space == std::string::npos || space + 1 == line.size())
      return Error::make(ErrorCode::invalid, "merge {} is not two texts with a space between them",
                         i);
    std::string left = line.substr(0, space);
    const std::string right = line.substr(space + 1);
    const Symbol left_symbol = symbols.intern(left);
    const Symbol right_symbol = symbols.intern(right);
    if (right.starts_with(kEscapedSpace) && !left.ends_with(kEscapedSpace))
      table.joins_space_[static_cast<std::uint8_t>(left.back())] = true;
    table.set(left_symbol, right_symbol, static_cast<Rank>(i));
    table.merged_.push_back(symbols.intern(left += right));
  }

  if (vocabulary.spelling() == Spelling::byte_level) {
    for (unsigned byte = 0; byte < 256; ++byte)
      table.by_byte_[byte] = symbols.find(byte_level_alphabet()[byte]);
    return table;
  }
  const auto note_char = [&](std::string_view text, Symbol symbol) {
    if (text.empty()) return;
    const Utf8Char c = next_char(text, 0);
    if (!c.valid || c.length != text.size()) return;
    if (c.code_point >= table.by_char_.size()) table.by_char_.resize(c.code_point + 1, kNoSymbol);
    table.by_char_[c.code_point] = symbol;
  };
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.is_mergeable(id)) note_char(vocabulary.text(id), static_cast<Symbol>(id));
  }
  for (const auto& [text, symbol] : symbols.extra()) note_char(text, symbol);
  return table;
}

}  // namespace tessera::text
