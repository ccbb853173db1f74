// Tokenizer: text to token ids and back, for the byte-pair vocabularies "gpt2" and "gemma4".
//
//   TESSERA_ASSIGN(Tokenizer tokenizer, Tokenizer::create(std::move(spec)));
//   std::vector<TokenId> ids = tokenizer.encode("Hello world", {.add_bos = true});
//   std::string text = tokenizer.decode(ids);
//
// Special tokens. Control and user-defined tokens ("<|im_start|>", "<think>") are matched whole,
// leftmost and then longest, in trusted text only. In untrusted text they are ordinary characters,
// so data cannot forge markup. A rendered chat is a list of segments, trusted (the template's
// literals) and not (user data): it is encoded as one text, but a special token must lie wholly in
// trusted segments.
//
// Any bytes are accepted. Ill-formed UTF-8 is kept: decoding token by token gives the same bytes
// back, as encoding is byte-exact but for NFC and for U+2581, which "gemma4" spells like a space.
// Time is about linear, also for one word of many megabytes. A Tokenizer is immutable: any number
// of threads may encode and decode at once. Result order and content depend on the arguments only.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe_merges.h"
#include "text/pretokenizer.h"
#include "text/token_special_matcher.h"
#include "text/tokenizer_spec.h"
#include "text/vocabulary.h"

namespace tessera::text {

struct EncodeOptions {
  bool parse_special = false;  // the text is trusted; segments say it for themselves
  // Put the beginning-of-sequence token first if the model wants one (adds_bos()) and the encoded
  // text does not begin with it already.
  bool add_bos = false;
  // Apply the Unicode normalisation that the family's models were trained with (NFC for "qwen2" and
  // "qwen35", none for the others). Off: the bytes as they are.
  bool normalize = true;
};

// A part of a text, with or without the right to contain special tokens.
struct Segment {
  std::string_view text;
  bool trusted = false;
};

class Tokenizer {
 public:
  static Result<Tokenizer> create(TokenizerSpec spec);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;
  std::vector<TokenId> encode(std::span<const Segment> segments,
                              const EncodeOptions& options = {}) const;

  // The bytes of one token; nothing for a hidden token unless it is asked for. May be part of a
  // character: see Detokenizer.
  std::string_view piece(TokenId id, bool show_special = false) const;
  // Well-formed UTF-8; ill-formed bytes become U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool show_special = false) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool is_eog(TokenId id) const { return vocabulary_.is_eog(id); }
  bool is_never_sampled(TokenId id) const { return vocabulary_.is_never_sampled(id); }
  bool adds_bos() const { return adds_bos_; }

 private:
  class Encoder;

  Tokenizer(Vocabulary vocabulary, MergeTable merges)
      : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)) {}
  Status find_byte_tokens();

  Vocabulary vocabulary_;
  MergeTable merges_;
  SpecialMatcher specials_;
  std::optional<Pretokenizer> pretokenizer_;  // byte-level vocabularies
  std::array<TokenId, 256> byte_tokens_{};    // for what no merged token covers
  bool adds_bos_ = false;
  bool wants_nfc_ = false;
};

}  // namespace tessera::text
