#include "server/completion_request.h"

#include <limits>

namespace tessera::server {
namespace {

void read_list(FieldReader& fields, const Json& list, int vocabulary,
               std::vector<RawPrompt>& prompts) {
  for (const Json& entry : list) {
    if (entry.is_string()) {
      prompts.emplace_back(entry.get<std::string>());
    } else if (entry.is_array() && !entry.empty()) {
      prompts.emplace_back(read_token_ids(fields, "prompt", entry, vocabulary));
    } else {
      fields.fail("prompt",
                  fmt::format("holds {}; its entries must be strings or non-empty lists of "
                              "token ids",
                              shown(entry)));
    }
    if (!fields.ok()) return;
  }
}

std::vector<RawPrompt> read_prompts(FieldReader& fields, int vocabulary, int most) {
  std::vector<RawPrompt> prompts;
  const Json* prompt = fields.any("prompt");
  if (prompt && prompt->is_string()) {
    prompts.emplace_back(prompt->get<std::string>());
  } else if (prompt && prompt->is_array() && !prompt->empty()) {
    if (prompt->front().is_number()) {
      prompts.emplace_back(read_token_ids(fields, "prompt", *prompt, vocabulary));
    } else if (prompt->size() > static_cast<std::size_t>(most)) {
      fields.fail("prompt",
                  fmt::format("has {} prompts; at most {} are allowed", prompt->size(), most));
    } else {
      read_list(fields, *prompt, vocabulary, prompts);
    }
  } else {
    fields.fail("prompt",
                fmt::format("is {}; it must be a string, a list of strings, a list of token "
                            "ids, or a list of such lists",
                            prompt ? shown(*prompt) : "missing"));
  }
  return prompts;
}

}  // namespace

std::vector<TokenId> read_token_ids(FieldReader& fields, const std::string& name, const Json& list,
                                    int vocabulary) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const Json& entry : list) {
    const auto id = entry.is_number_integer() ? entry.get<std::int64_t>() : -1;
    if (id < 0 || id >= vocabulary) {
      fields.fail(name, fmt::format("holds {}; token ids are integers from 0 to {}", shown(entry),
                                    vocabulary - 1));
      return {};
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

std::variant<CompletionRequest, ApiError> parse_completion_request(const Json& body,
                                                                   const ServedModel& model,
                                                                   const RequestLimits& limits) {
  if (!body.is_object()) return bad_request("the body must be a JSON object");
  FieldReader fields(body);
  CompletionRequest request;
  request.prompts = read_prompts(fields, model.vocabulary, limits.max_choices);
  request.generation = read_generation_fields(fields, model, limits);
  request.echo = fields.boolean("echo").value_or(false);
  request.logprobs = static_cast<int>(fields.integer("logprobs", 0, 20).value_or(-1));
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  // Nothing to generate makes sense only for the prompt's own text and log-probabilities.
  request.generation.max_tokens =
      fields.integer("max_tokens", request.echo ? 0 : 1, kMost).value_or(16);
  const auto best_of = fields.integer("best_of", 1, kMost);
  if (best_of && *best_of != request.generation.n) {
    fields.fail(unsupported_field(
        "best_of", fmt::format("best_of is {}; only best_of = n ({}) is supported", *best_of,
                               request.generation.n)));
  }
  const auto suffix = fields.text("suffix");
  if (suffix && !suffix->empty()) {
    fields.fail(unsupported_field("suffix",
                                  "suffix is not supported: the model's fill-in-the-middle "
                                  "tokens are not used"));
  }
  if (fields.ok() && request.prompts.size() * static_cast<std::size_t>(request.generation.n) >
                         static_cast<std::size_t>(limits.max_choices)) {
    fields.fail("n", fmt::format("is {} for {} prompts; at most {} choices are allowed",
                                 request.generation.n, request.prompts.size(), limits.max_choices));
  }
  if (limits.strict_params) fields.refuse_unknown();
  if (!fields.ok()) return fields.error();
  return request;
}

}  // namespace tessera::server
