// The response of /v1/chat/completions: objects chat.completion and chat.completion.chunk.
#pragma once

#include <functional>

#include "server/reply.h"

namespace tessera::server {

class ChatReply : public Reply {
 public:
  // `piece` spells the alternatives of a token; logprobs: they were asked for.
  ChatReply(ReplyHead head, int choices, bool logprobs, std::function<std::string(TokenId)> piece);

 protected:
  const char* object_name() const override;
  Json chunk_choice(int choice, const OutputSlice& slice, bool first) override;
  Json whole_choice(int choice, const OutputSlice& all) const override;

 private:
  Json logprobs(const OutputSlice& slice) const;

  bool logprobs_;
  std::function<std::string(TokenId)> piece_;
};

}  // namespace tessera::server
