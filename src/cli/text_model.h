// The text side of a model file: tokenizer and chat template. Needs the vocabulary keys only, so it
// also reads files without tensors and of architectures that cannot be run.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/config.h"
#include "gguf/gguf.h"
#include "model/spec.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tessera::cli {

struct TextModel {
  text::Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
  std::string no_chat;  // why there is none

  // A conversation as token ids.
  Result<std::vector<TokenId>> encode_chat(const ChatInput& input) const;
};

// A template that --chat-template-file names must work; a model's own that does not leaves the
// model without one.
Result<TextModel> read_text_model(const gguf::File& file, const Config& config);

std::vector<TokenId> encode_segments(const text::Tokenizer& tokenizer,
                                     const std::vector<jinja::Segment>& segments);

// Today, for templates that print the date.
std::chrono::sys_seconds clock_now();

}  // namespace tessera::cli
