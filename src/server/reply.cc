#include "server/reply.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "server/expert_use_json.h"
#include "server/sse.h"

namespace tessera::server {
namespace {

double per_second(int count, double seconds) {
  return seconds > 0.0 ? count / seconds : 0.0;
}

void append(OutputSlice& all, OutputSlice slice) {
  all.text += slice.text;
  std::move(slice.tokens.begin(), slice.tokens.end(), std::back_inserter(all.tokens));
  if (slice.finish) all.finish = slice.finish;
}

}  // namespace

const char* openai_finish_reason(FinishReason reason) {
  return reason == FinishReason::length ? "length" : "stop";
}

double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

Reply::Reply(ReplyHead head, const ReplyChoices& choices)
    : head_(std::move(head)), choices_per_prompt_(choices.per_prompt), open_(choices.all) {
  for (int i = 0; i < choices.all; ++i)
    choices_.push_back({.output = ChoiceOutput(choices.keep_tokens)});
}

void Reply::inspect(int, GenerationEvent&) {}

std::string Reply::feed(int index, GenerationEvent event) {
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  inspect(index, event);
  OutputSlice slice = choice.output.feed(std::move(event));
  if (slice.finish) --open_;
  if (head_.stream) return feed_stream(index, std::move(slice));
  append(choice.all, std::move(slice));
  return {};
}

// Text and tokens go into one chunk, the end into its own.
std::string Reply::feed_stream(int index, OutputSlice slice) {
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  const auto finish = std::exchange(slice.finish, std::nullopt);
  std::string out;
  if (!choice.begun || !slice.text.empty() || !slice.tokens.empty()) {
    const Json shown = chunk_choice(index, slice, !choice.begun);
    choice.begun = true;
    for (const Json& part : shown) out += chunk(Json::array({part}));
  }
  if (finish) {
    OutputSlice end;
    end.finish = finish;
    for (const Json& part : chunk_choice(index, end, false)) out += chunk(Json::array({part}));
  }
  return out;
}

Json Reply::envelope() const {
  return {{"id", head_.id},
          {"object", object_name()},
          {"created", head_.created},
          {"model", head_.model},
          {"system_fingerprint", head_.fingerprint}};
}

std::string Reply::chunk(Json choices) const {
  Json body = envelope();
  body["choices"] = std::move(choices);
  if (head_.include_usage) body["usage"] = nullptr;
  return sse_data(dump_json(body));
}

std::string Reply::stream_end() const {
  std::string out;
  if (head_.include_usage) {
    Json body = envelope();
    body["choices"] = Json::array();
    body["usage"] = usage();
    body["timings"] = timings();
    out += sse_data(dump_json(body));
  }
  return out + sse_data("[DONE]");
}

Json Reply::whole() const {
  Json body = envelope();
  Json list = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    list.push_back(whole_choice(static_cast<int>(i), choices_[i].all));
  }
  body["choices"] = std::move(list);
  body["usage"] = usage();
  body["timings"] = timings();
  return body;
}

int Reply::prompt_tokens() const {
  int total = 0;
  for (std::size_t i = 0; i < choices_.size(); i += static_cast<std::size_t>(choices_per_prompt_)) {
    if (const auto& finish = choices_[i].output.finish()) total += finish->usage.prompt_tokens;
  }
  return total;
}

int Reply::generated_tokens() const {
  int total = 0;
  for (const Choice& choice : choices_) {
    if (const auto& finish = choice.output.finish()) total += counted(*finish);
  }
  return total;
}

Json Reply::usage() const {
  return {{"prompt_tokens", prompt_tokens()},
          {"completion_tokens", generated_tokens()},
          {"total_tokens", prompt_tokens() + generated_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", 0}}},
          {"completion_tokens_details", {{"reasoning_tokens", 0}}}};
}

// Counts are sums over the choices; times those of the slowest; the seed is the first choice's (the
// others have the ones after it).
Json Reply::timings() const {
  Usage total;
  for (const Choice& choice : choices_) {
    if (!choice.output.finish()) continue;
    const Usage& usage = choice.output.finish()->usage;
    total.queue_s = std::max(total.queue_s, usage.queue_s);
    total.prompt_s = std::max(total.prompt_s, usage.prompt_s);
    total.generate_s = std::max(total.generate_s, usage.generate_s);
    if (!usage.experts) continue;
    if (!total.experts) total.experts.emplace();
    total.experts->add(*usage.experts, 1.0);
  }
  const auto& first = choices_.front().output.finish();
  Json timings = {{"queue_ms", total.queue_s * 1e3},
                  {"prompt_n", prompt_tokens()},
                  {"prompt_ms", total.prompt_s * 1e3},
                  {"prompt_per_second", per_second(prompt_tokens(), total.prompt_s)},
                  {"predicted_n", generated_tokens()},
                  {"predicted_ms", total.generate_s * 1e3},
                  {"predicted_per_second", per_second(generated_tokens(), total.generate_s)},
                  {"seed", first ? first->usage.seed : 0}};
  if (total.experts) timings["experts"] = expert_use_json(*total.experts);
  return timings;
}

}  // namespace tessera::server
