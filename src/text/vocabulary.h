// Vocabulary: the checked token table of a model.
//
//   TESSERA_ASSIGN(Vocabulary vocabulary, Vocabulary::create(spec));
//   vocabulary.piece(id)        // the bytes that a token stands for
//   vocabulary.is_eog(id)       // does it end a generation?
//
// Ids run from 0 to size() - 1. Every accessor that takes an id accepts any value: ids outside the
// table have an empty text and piece, are hidden, end nothing and are never sampled. Views stay
// valid as long as the vocabulary lives, also when it is moved. Immutable; any thread may read.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace tessera::text {

// How a token's text spells bytes.
enum class Spelling {
  byte_level,     // "gpt2": one printable character per byte
  space_escaped,  // "gemma4": UTF-8 with U+2581 for a space, and byte tokens "<0xXX>"
};

// A converter's name for a row that pads the table: "[PAD151700]" at 151700.
bool is_filler(std::string_view text, TokenId id);

class Vocabulary {
 public:
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 21;
  static constexpr std::size_t kMaxTokenBytes = 64 * 1024;
  static constexpr std::size_t kMaxSpecialBytes = 1024;

  // Takes tokens and types out of `spec`. Of equal token texts the last one is found by its text.
  static Result<Vocabulary> create(TokenizerSpec& spec);

  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  int size() const { return static_cast<int>(tokens_.size()); }
  Spelling spelling() const { return spelling_; }

  std::string_view text(TokenId id) const;  // as the file spells it
  TokenType type(TokenId id) const;         // `unused` outside the table
  std::string_view piece(TokenId id) const;
  std::optional<TokenId> find(std::string_view text) const;

  // Hidden tokens are not part of the text that a model writes.
  bool is_hidden(TokenId id) const { return (flags(id) & kHidden) != 0; }
  bool is_eog(TokenId id) const { return (flags(id) & kEog) != 0; }
  bool is_never_sampled(TokenId id) const { return (flags(id) & kNeverSampled) != 0; }
  // Matched whole in trusted text.
  bool is_special(TokenId id) const { return (flags(id) & kSpecial) != 0; }
  // May be the result of a merge: control, byte and filler tokens may not.
  bool is_mergeable(TokenId id) const { return (flags(id) & kMergeable) != 0; }

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> unknown() const { return unknown_; }
  std::optional<TokenId> padding() const { return padding_; }
  const std::vector<TokenId>& eog_ids() const { return eog_ids_; }

 private:
  enum Flag : std::uint8_t {
    kHidden = 1,
    kEog = 2,
    kNeverSampled = 4,
    kSpecial = 8,
    kMergeable = 16,
  };

  Vocabulary() = default;
  Status take_tokens(TokenizerSpec& spec);
  Status take_ids(const TokenizerSpec& spec);
  void apply_family_rules(const TokenizerSpec& spec);
  Status set_flags();
  void spell_pieces();
  bool in_table(TokenId id) const { return id >= 0 && id < size(); }
  std::uint8_t flags(TokenId id) const {
    return in_table(id) ? flags_[static_cast<std::size_t>(id)]
                        : static_cast<std::uint8_t>(kHidden | kNeverSampled);
  }

  Spelling spelling_ = Spelling::byte_level;
  std::vector<std::string> tokens_;
  std::vector<TokenType> types_;
  std::vector<std::uint8_t> flags_;
  std::unordered_map<std::string_view, TokenId> by_text_;  // views into tokens_
  std::string pieces_;                                     // all pieces, one after the other
  std::vector<std::size_t> piece_begin_;                   // size() + 1 offsets
  std::optional<TokenId> bos_, eos_, unknown_, padding_;
  std::vector<TokenId> eog_ids_;  // sorted
};

}  // namespace tessera::text
