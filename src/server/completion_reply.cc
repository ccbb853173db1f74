#include "server/completion_reply.h"

#include <algorithm>

namespace tessera::server {
namespace {

// Characters that begin in the bytes.
std::size_t characters(std::string_view bytes) {
  return static_cast<std::size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::size_t total(std::size_t prompts, int per_prompt) {
  return prompts * static_cast<std::size_t>(per_prompt);
}

}  // namespace

CompletionReply::CompletionReply(ReplyHead head, std::vector<Prompt> prompts,
                                 CompletionReplyOptions options,
                                 std::function<std::string(TokenId)> piece)
    : Reply(std::move(head),
            {.all = static_cast<int>(total(prompts.size(), options.choices_per_prompt)),
             .per_prompt = options.choices_per_prompt,
             .keep_tokens = options.logprobs}),
      prompts_(std::move(prompts)),
      options_(options),
      piece_(std::move(piece)),
      echoed_(total(prompts_.size(), options.choices_per_prompt)),
      shown_(echoed_.size(), 0) {}

const CompletionReply::Prompt& CompletionReply::prompt_of(int choice) const {
  return prompts_[static_cast<std::size_t>(choice / options_.choices_per_prompt)];
}

int CompletionReply::counted(const Finish& finish) const {
  return options_.drop_generated ? 0 : finish.usage.generated_tokens;
}

void CompletionReply::inspect(int choice, GenerationEvent& event) {
  const Prompt& prompt = prompt_of(choice);
  auto& echoed = echoed_[static_cast<std::size_t>(choice)];
  if (options_.echo && options_.logprobs && !event.prompt_tokens.empty()) {
    // The first token follows nothing and has no log-probability; the engine reports those after
    // it.
    const std::size_t missing =
        prompt.ids.size() - std::min(prompt.ids.size(), event.prompt_tokens.size());
    for (std::size_t i = 0; i < missing; ++i) {
      echoed.push_back({.id = prompt.ids[i], .piece = piece_(prompt.ids[i])});
    }
    std::move(event.prompt_tokens.begin(), event.prompt_tokens.end(), std::back_inserter(echoed));
  }
  if (options_.drop_generated) {
    event.text.clear();
    event.tokens.clear();
    if (event.finish) event.finish->reason = FinishReason::length;
  }
}

Json CompletionReply::logprobs(const std::vector<EmittedToken>& prompt_tokens,
                               const OutputSlice& slice, std::size_t begin) const {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
       offsets = Json::array();
  std::size_t offset = begin;
  const auto add = [&](const EmittedToken& token, bool known) {
    tokens.push_back(token.piece);
    values.push_back(known ? Json(finite_logprob(token.logprob)) : Json());
    Json top = known ? Json::object() : Json();
    if (known) {
      for (const TokenLogprob& other : token.top)
        top[piece_(other.id)] = finite_logprob(other.logprob);
      top[token.piece] = finite_logprob(token.logprob);
    }
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += characters(token.piece);
  };
  for (std::size_t i = 0; i < prompt_tokens.size(); ++i) add(prompt_tokens[i], i > 0);
  for (const EmittedToken& token : slice.tokens) add(token, true);
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json CompletionReply::entry(int choice, std::string text, Json logprobs, Json finish) const {
  return {{"text", std::move(text)},
          {"index", choice},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish)}};
}

Json CompletionReply::chunk_choice(int choice, const OutputSlice& slice, bool first) {
  Json out = Json::array();
  if (slice.finish) {
    out.push_back(entry(choice, "", nullptr, openai_finish_reason(*slice.finish)));
    return out;
  }
  const bool echo_now = first && options_.echo;
  const std::string text = (echo_now ? prompt_of(choice).text : "") + slice.text;
  if (text.empty() && slice.tokens.empty()) return out;
  std::size_t& shown = shown_[static_cast<std::size_t>(choice)];
  static const std::vector<EmittedToken> kNone;
  const auto& prompt_tokens = echo_now ? echoed_[static_cast<std::size_t>(choice)] : kNone;
  out.push_back(entry(choice, text,
                      options_.logprobs ? logprobs(prompt_tokens, slice, shown) : Json(), nullptr));
  shown += characters(text);
  return out;
}

Json CompletionReply::whole_choice(int choice, const OutputSlice& all) const {
  const std::string text = (options_.echo ? prompt_of(choice).text : "") + all.text;
  const auto& prompt_tokens = echoed_[static_cast<std::size_t>(choice)];
  // Without the prompt's tokens the offsets begin behind the echoed text.
  const std::size_t begin = prompt_tokens.empty() ? characters(text) - characters(all.text) : 0;
  return entry(choice, text, options_.logprobs ? logprobs(prompt_tokens, all, begin) : Json(),
               openai_finish_reason(all.finish.value_or(FinishReason::stop)));
}

}  // namespace tessera::server
