// TokenizerSpec: what a model file says about its tokenizer, as plain values.
//
// A reader fills it (read_tokenizer_spec in model/model.h) without judging the contents;
// Tokenizer::create checks every rule and says which one is broken. Strings are bytes: a token's
// text need not be valid UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::text {

using TokenId = std::int32_t;

// The values of tokenizer.ggml.token_type.
enum class TokenType : std::int32_t {
  normal = 1,
  unknown = 2,
  control = 3,       // steers the model; hidden in text
  user_defined = 4,  // matched whole like a control token, but printed
  unused = 5,        // a filler row; never sampled
  byte = 6,          // "<0xXX>"
};

struct TokenizerSpec {
  std::string model;  // tokenizer.ggml.model: "gpt2" or "gemma4"
  std::string
      pre_tokenizer;  // tokenizer.ggml.pre: "qwen2", "qwen35", "laguna"; unused for "gemma4"

  std::vector<std::string> tokens;
  std::vector<std::int32_t> token_types;  // TokenType values; empty: every token is normal
  std::vector<float> scores;              // not used; empty or one per token
  std::vector<std::string> merges;        // "left right", best first

  // Absent in the file: nullopt. There are no default ids.
  std::optional<std::int64_t> bos_id;
  std::optional<std::int64_t> eos_id;
  std::optional<std::int64_t> eot_id;
  std::optional<std::int64_t> unknown_id;
  std::optional<std::int64_t> padding_id;
  std::vector<std::int64_t> extra_eog_ids;  // more ids that end a generation

  std::optional<bool>
      add_bos;                // tokenizer.ggml.add_bos_token; absent: false ("gemma4": always true)
  std::string chat_template;  // tokenizer.chat_template, empty if absent
};

}  // namespace tessera::text
