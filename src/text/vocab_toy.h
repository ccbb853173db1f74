// Small vocabularies for tests and fuzzing: complete, valid and readable at a glance.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "text/token_spelling.h"
#include "text/tokenizer_spec.h"

namespace tessera::text {

inline void add_token(TokenizerSpec& spec, std::string_view text, TokenType type) {
  spec.tokens.emplace_back(text);
  spec.token_types.push_back(static_cast<std::int32_t>(type));
}

// Adds the rule and, as a normal token, its result.
inline void add_merge(TokenizerSpec& spec, const std::string& left, const std::string& right) {
  spec.merges.push_back(left + " " + right);
  add_token(spec, left + right, TokenType::normal);
}

// "gpt2": the 256 bytes (ids in byte order), merges for "hello", "low", " l" and blanks, then
// <|im_start|>, <|im_end|>, <think>, <think>! and a filler.
inline TokenizerSpec toy_byte_level_spec(std::string_view pre_tokenizer = "qwen2") {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre_tokenizer = pre_tokenizer;
  for (const std::string& byte : byte_level_alphabet()) add_token(spec, byte, TokenType::normal);
  const std::string space = byte_level_alphabet()[' '];
  add_merge(spec, "l", "o");
  add_merge(spec, "h", "e");
  add_merge(spec, "l", "lo");
  add_merge(spec, "he", "llo");
  add_merge(spec, "lo", "w");
  add_merge(spec, space, "l");
  add_merge(spec, space, space);
  add_token(spec, "<|im_start|>", TokenType::control);
  add_token(spec, "<|im_end|>", TokenType::control);
  add_token(spec, "<think>", TokenType::user_defined);
  add_token(spec, "<think>!", TokenType::user_defined);
  add_token(spec, "[PAD" + std::to_string(spec.tokens.size()) + "]", TokenType::unused);
  spec.eos_id = static_cast<std::int64_t>(spec.tokens.size()) - 4;
  return spec;
}

// "gemma4": <pad>, <eos>, <bos>, the 256 byte tokens, letters and U+2581 with merges for "▁he",
// runs of two and three newlines, <|turn>, <turn|> and <|channel> (typed control, as older files
// do).
inline TokenizerSpec toy_escaped_spec() {
  TokenizerSpec spec;
  spec.model = "gemma4";
  for (const std::string_view text : {"<pad>", "<eos>", "<bos>"})
    add_token(spec, text, TokenType::control);
  for (unsigned byte = 0; byte < 256; ++byte)
    add_token(spec, spell_byte_token(static_cast<std::uint8_t>(byte)), TokenType::byte);
  const std::string space(kEscapedSpace);
  for (const std::string& text : {std::string("h"), std::string("e"), std::string("l"),
                                  std::string("o"), std::string(">"), std::string("\n"), space})
    add_token(spec, text, TokenType::normal);
  add_merge(spec, "\n", "\n");
  add_merge(spec, "\n\n", "\n");
  add_merge(spec, space, space);
  add_merge(spec, "h", "e");
  add_merge(spec, space, "he");
  for (const std::string_view text : {"<|turn>", "<turn|>", "<|channel>"})
    add_token(spec, text, TokenType::control);
  spec.padding_id = 0;
  spec.eos_id = 1;
  spec.bos_id = 2;
  return spec;
}

}  // namespace tessera::text
