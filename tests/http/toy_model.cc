#include "tests/http/toy_model.h"

namespace tessera::http_test {
namespace {

constexpr std::string_view kBegin = "<|begin|>";
constexpr std::string_view kEnd = "<|end|>";

void append_tokens(std::string_view text, bool special, std::vector<TokenId>& out) {
  while (!text.empty()) {
    if (special && text.starts_with(kBegin)) {
      out.push_back(kTurnBegin);
      text.remove_prefix(kBegin.size());
    } else if (special && text.starts_with(kEnd)) {
      out.push_back(kTurnEnd);
      text.remove_prefix(kEnd.size());
    } else {
      out.push_back(static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    }
  }
}

std::string piece_of(TokenId id) {
  if (id == kTurnBegin) return std::string(kBegin);
  if (id == kTurnEnd) return std::string(kEnd);
  return id < 256 ? std::string(1, static_cast<char>(id)) : "?";
}

Result<std::vector<server::PromptSegment>> render(const server::ChatPrompt& prompt) {
  std::vector<server::PromptSegment> out;
  if (!prompt.tools.empty()) out.push_back({"tools: " + prompt.tools.dump() + "\n", true});
  for (const auto& message : prompt.messages) {
    const auto content = message["content"].get<std::string>();
    if (content == "template error") {
      return Error::make(ErrorCode::invalid, "template: the conversation is refused");
    }
    out.push_back({std::string(kBegin) + message["role"].get<std::string>() + "\n", true});
    out.push_back({content, false});
    out.push_back({std::string(kEnd) + "\n", true});
  }
  if (prompt.kwargs.value("enable_thinking", false)) out.push_back({"think\n", true});
  if (prompt.add_generation_prompt) out.push_back({std::string(kBegin) + "assistant\n", true});
  return out;
}

}  // namespace

std::string prompt_text(const std::vector<TokenId>& ids) {
  std::string out;
  for (const TokenId id : ids) out += piece_of(id);
  return out;
}

server::ServedModel toy_model() {
  server::ServedModel model;
  model.id = "toy";
  model.created = 1'700'000'000;
  model.vocabulary = kVocabulary;
  model.plan = [] { return server::Json{{"device", "none"}}; };
  model.encode = [](std::string_view text, server::EncodeRules rules) {
    std::vector<TokenId> out;
    append_tokens(text, rules.parse_special, out);
    return out;
  };
  model.encode_chat = [](const std::vector<server::PromptSegment>& segments) {
    std::vector<TokenId> out;
    for (const auto& segment : segments) append_tokens(segment.text, segment.trusted, out);
    return out;
  };
  model.decode = prompt_text;
  model.piece = piece_of;
  model.render_chat = render;
  return model;
}

}  // namespace tessera::http_test
