// ServedModel: what the HTTP layer needs to know of the loaded model, and no more: its name, its
// text functions and facts to show. The program makes it from the tokenizer and the chat template.
//
// The functions are called from several worker threads at once. `encode` and `encode_chat` may take
// long (they are never called on the I/O thread); `piece` must be quick, and so must `plan`, which
// the I/O thread calls.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/json_body.h"

namespace tessera::server {

// What a chat template renders. `messages` and `tools` are canonical (chat_messages.h); `kwargs`
// are the template's further variables.
struct ChatPrompt {
  Json messages = Json::array();
  Json tools = Json::array();
  bool add_generation_prompt = true;
  Json kwargs = Json::object();
};

// A part of a rendered prompt; special tokens are recognised in trusted parts only.
struct PromptSegment {
  std::string text;
  bool trusted = false;
};

struct EncodeRules {
  bool parse_special = false;
  bool add_bos = false;  // if the model wants one and the text does not begin with it
};

struct ServedModel {
  std::string id;
  std::int64_t created = 0;     // Unix seconds
  int vocabulary = 0;           // token ids are 0 .. vocabulary - 1
  int trained_context = 0;      // 0: unknown
  SamplingParams sampling;      // for what a request leaves open
  Json meta = Json::object();   // facts for /v1/models
  Json props = Json::object();  // facts for /props
  // The placement as it is now, for /props.
  std::function<Json()> plan = [] { return Json::object(); };

  std::function<std::vector<TokenId>(std::string_view text, EncodeRules rules)> encode;
  std::function<std::vector<TokenId>(const std::vector<PromptSegment>& segments)> encode_chat;
  std::function<std::string(const std::vector<TokenId>& ids)> decode;
  std::function<std::string(TokenId id)> piece;  // the token's own bytes
  // Empty when the model has no chat template.
  std::function<Result<std::vector<PromptSegment>>(const ChatPrompt& prompt)> render_chat;
};

}  // namespace tessera::server
