// Tokenizer::Encoder: the state of one call of Tokenizer::encode. Private to the tokenizer.
//
// The way of a text: trusted parts are searched for special tokens; each stretch between two of
// them is normalised if the family wants it and cut into words; each word is merged into tokens.
// Words repeat, so the last words seen are remembered as ranges of the output.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer.h"

namespace tessera::text {

class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const EncodeOptions& options);

  std::vector<TokenId> run(std::span<const Segment> segments);

 private:
  struct SeenWord {
    const char* text = nullptr;
    std::size_t length = 0;
    std::size_t begin = 0;  // its tokens in out_
    std::size_t count = 0;
  };

  void encode_trusted(std::string_view text, std::size_t from, std::size_t to);
  void end_stretch(std::string_view text, std::size_t end);
  void encode_stretch(std::string_view text);
  void encode_escaped(std::string_view text);
  void encode_word(std::string_view word);
  void merge_word(std::string_view word);
  void load_bytes(std::string_view word);
  void load_chars(std::string_view word);

  const Tokenizer& tokenizer_;
  const EncodeOptions& options_;
  std::optional<Pretokenizer::Words> words_;
  BpeMerger merger_;
  std::vector<SeenWord> seen_;          // by hash; empty when the text is too short to gain
  std::deque<std::string> normalized_;  // kept: seen_ points into them
  std::size_t stretch_begin_ = 0;
  std::vector<TokenId> out_;
};

}  // namespace tessera::text
