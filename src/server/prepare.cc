#include "server/prepare.h"

#include <algorithm>
#include <chrono>

#include "server/chat_reply.h"
#include "server/completion_reply.h"
#include "server/random_id.h"

namespace tessera::server {
namespace {

std::int64_t unix_now() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
      .count();
}

ReplyHead reply_head(std::string_view prefix, const GenerationFields& fields,
                     const PrepareContext& context) {
  return {.id = random_id(prefix),
          .created = unix_now(),
          .model = context.model.id,
          .fingerprint = context.fingerprint,
          .stream = fields.stream,
          .include_usage = fields.stream && fields.include_usage};
}

// The engine's request without prompt and seed.
GenerationRequest engine_request(const GenerationFields& fields, int top_logprobs) {
  GenerationRequest request;
  request.sampling = fields.sampling;
  request.stop = fields.stop;
  request.ignore_eos = fields.ignore_eos;
  request.top_logprobs = top_logprobs;
  return request;
}

// The number of tokens to generate: what was asked for, cut to what the context has room for.
int clamp_tokens(const std::optional<std::int64_t>& asked, std::size_t prompt, int context,
                 bool& clamped) {
  const std::int64_t room = context - static_cast<std::int64_t>(prompt);
  if (!asked) return static_cast<int>(room);
  if (*asked > room) clamped = true;
  return static_cast<int>(std::min(*asked, room));
}

void add_choices(GenerationRequest base, int n, std::vector<GenerationRequest>& requests) {
  const auto seed = base.sampling.seed;
  for (int i = 0; i < n; ++i) {
    GenerationRequest request = base;
    if (seed) request.sampling.seed = *seed + static_cast<std::uint64_t>(i);
    requests.push_back(std::move(request));
  }
}

std::optional<ApiError> check_choices(int choices, const PrepareContext& context) {
  if (choices <= context.most_choices) return {};
  return bad_request(
      fmt::format("{} answers were asked for (n for each prompt); this server holds at most {} "
                  "at once",
                  choices, context.most_choices),
      "n");
}

Headers notes(const GenerationFields& fields, bool clamped) {
  Headers headers;
  if (clamped) headers.emplace_back("x-clamped", "max_tokens");
  std::string ignored;
  for (const std::string& name : fields.ignored) ignored += (ignored.empty() ? "" : ", ") + name;
  if (!ignored.empty()) headers.emplace_back("x-ignored", ignored);
  return headers;
}

std::vector<TokenId> encode_raw(const RawPrompt& prompt, const ServedModel& model) {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) return *ids;
  return model.encode(std::get<std::string>(prompt), {.parse_special = true, .add_bos = true});
}

std::string text_of(const RawPrompt& prompt, const ServedModel& model) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return model.decode(std::get<std::vector<TokenId>>(prompt));
}

std::optional<ApiError> check_length(std::size_t tokens, int context, const char* param) {
  if (tokens == 0) return bad_request(fmt::format("{} is empty: it has no tokens", param), param);
  if (tokens < static_cast<std::size_t>(std::max(context, 0))) return {};
  ApiError error = context_overflow(tokens, context);
  error.param = param;
  return error;
}

}  // namespace

std::variant<std::vector<PromptSegment>, ApiError> render_prompt(const ChatPrompt& prompt,
                                                                 const ServedModel& model) {
  if (!model.render_chat) {
    return bad_request("the model has no chat template; use /v1/completions", "messages");
  }
  auto segments = model.render_chat(prompt);
  if (segments) return *std::move(segments);
  ApiError error = from_error(segments.error());
  if (error.status == 400) error.code = "template_error";
  return error;
}

Prepared prepare_chat(std::string_view body, const PrepareContext& context) {
  auto json = parse_json_body(body);
  if (!json) return from_error(json.error());
  auto parsed = parse_chat_request(*json, context.model, context.limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  auto& chat = std::get<ChatRequest>(parsed);
  if (auto error = check_choices(chat.generation.n, context)) return *std::move(error);
  auto rendered = render_prompt(chat.prompt, context.model);
  if (auto* error = std::get_if<ApiError>(&rendered)) return std::move(*error);

  GenerationRequest request = engine_request(chat.generation, chat.top_logprobs);
  request.prompt = context.model.encode_chat(std::get<0>(rendered));
  if (auto error = check_length(request.prompt.size(), context.context, "messages")) {
    return *std::move(error);
  }
  bool clamped = false;
  request.max_tokens =
      clamp_tokens(chat.generation.max_tokens, request.prompt.size(), context.context, clamped);
  PreparedGeneration out;
  out.headers = notes(chat.generation, clamped);
  out.reply =
      std::make_unique<ChatReply>(reply_head("chatcmpl-", chat.generation, context),
                                  chat.generation.n, chat.top_logprobs >= 0, context.model.piece);
  add_choices(std::move(request), chat.generation.n, out.requests);
  return out;
}

Prepared prepare_completion(std::string_view body, const PrepareContext& context) {
  auto json = parse_json_body(body);
  if (!json) return from_error(json.error());
  auto parsed = parse_completion_request(*json, context.model, context.limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  auto& completion = std::get<CompletionRequest>(parsed);
  const GenerationFields& fields = completion.generation;

  const int choices = static_cast<int>(completion.prompts.size()) * fields.n;
  if (auto error = check_choices(choices, context)) return *std::move(error);

  PreparedGeneration out;
  std::vector<CompletionReply::Prompt> prompts;
  const bool scored = completion.echo && completion.logprobs >= 0;
  const bool nothing = fields.max_tokens == 0;
  bool clamped = false;
  for (const RawPrompt& prompt : completion.prompts) {
    GenerationRequest request = engine_request(fields, completion.logprobs);
    request.prompt = encode_raw(prompt, context.model);
    request.prompt_logprobs = scored;
    if (auto error = check_length(request.prompt.size(), context.context, "prompt")) {
      return *std::move(error);
    }
    request.max_tokens =
        nothing ? 1
                : clamp_tokens(fields.max_tokens, request.prompt.size(), context.context, clamped);
    prompts.push_back({.text = completion.echo ? text_of(prompt, context.model) : "",
                       .ids = scored ? request.prompt : std::vector<TokenId>{}});
    add_choices(std::move(request), fields.n, out.requests);
  }
  out.headers = notes(fields, clamped);
  out.reply =
      std::make_unique<CompletionReply>(reply_head("cmpl-", fields, context), std::move(prompts),
                                        CompletionReplyOptions{.choices_per_prompt = fields.n,
                                                               .echo = completion.echo,
                                                               .logprobs = completion.logprobs >= 0,
                                                               .drop_generated = nothing},
                                        context.model.piece);
  return out;
}

}  // namespace tessera::server
