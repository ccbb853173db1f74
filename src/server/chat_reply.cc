#include "server/chat_reply.h"

namespace tessera::server {
namespace {

Json token_entry(const std::string& piece, float logprob) {
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", piece}, {"logprob", finite_logprob(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

ChatReply::ChatReply(ReplyHead head, int choices, bool logprobs,
                     std::function<std::string(TokenId)> piece)
    : Reply(std::move(head), {.all = choices, .per_prompt = choices, .keep_tokens = logprobs}),
      logprobs_(logprobs),
      piece_(std::move(piece)) {}

const char* ChatReply::object_name() const {
  return head().stream ? "chat.completion.chunk" : "chat.completion";
}

Json ChatReply::logprobs(const OutputSlice& slice) const {
  Json content = Json::array();
  for (const EmittedToken& token : slice.tokens) {
    Json entry = token_entry(token.piece, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : token.top) {
      entry["top_logprobs"].push_back(token_entry(piece_(other.id), other.logprob));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json ChatReply::chunk_choice(int choice, const OutputSlice& slice, bool first) {
  const auto entry = [&](Json delta) {
    return Json{{"index", choice},
                {"delta", std::move(delta)},
                {"logprobs", nullptr},
                {"finish_reason", nullptr}};
  };
  Json out = Json::array();
  if (first) out.push_back(entry({{"role", "assistant"}, {"content", ""}}));
  if (slice.finish) {
    out.push_back(entry(Json::object()));
    out.back()["finish_reason"] = openai_finish_reason(*slice.finish);
  } else if (!slice.text.empty() || !slice.tokens.empty()) {
    out.push_back(entry({{"content", slice.text}}));
    if (logprobs_) out.back()["logprobs"] = logprobs(slice);
  }
  return out;
}

Json ChatReply::whole_choice(int choice, const OutputSlice& all) const {
  return {{"index", choice},
          {"message", {{"role", "assistant"}, {"content", all.text}, {"refusal", nullptr}}},
          {"logprobs", logprobs_ ? logprobs(all) : Json()},
          {"finish_reason", openai_finish_reason(all.finish.value_or(FinishReason::stop))}};
}

}  // namespace tessera::server
