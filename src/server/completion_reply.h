// The response of /v1/completions: object text_completion, whole and in chunks.
#pragma once

#include <functional>
#include <vector>

#include "server/reply.h"

namespace tessera::server {

struct CompletionReplyOptions {
  int choices_per_prompt = 1;
  bool echo = false;
  bool logprobs = false;
  bool drop_generated = false;  // max_tokens was 0: one token is sampled and not shown
};

class CompletionReply : public Reply {
 public:
  struct Prompt {
    std::string text;          // used with echo only
    std::vector<TokenId> ids;  // used with echo and logprobs only
  };

  CompletionReply(ReplyHead head, std::vector<Prompt> prompts, CompletionReplyOptions options,
                  std::function<std::string(TokenId)> piece);

 protected:
  const char* object_name() const override { return "text_completion"; }
  Json chunk_choice(int choice, const OutputSlice& slice, bool first) override;
  Json whole_choice(int choice, const OutputSlice& all) const override;
  void inspect(int choice, GenerationEvent& event) override;
  int counted(const Finish& finish) const override;

 private:
  const Prompt& prompt_of(int choice) const;
  Json logprobs(const std::vector<EmittedToken>& prompt_tokens, const OutputSlice& slice,
                std::size_t begin) const;
  Json entry(int choice, std::string text, Json logprobs, Json finish) const;

  std::vector<Prompt> prompts_;
  CompletionReplyOptions options_;
  std::function<std::string(TokenId)> piece_;
  std::vector<std::vector<EmittedToken>> echoed_;  // by choice: the prompt's tokens
  std::vector<std::size_t> shown_;                 // by choice: characters of the text so far
};

}  // namespace tessera::server
