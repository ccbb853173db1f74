#include "server/chat_request.h"

#include <algorithm>
#include <array>
#include <limits>

#include "server/chat_messages.h"

namespace tessera::server {
namespace {

constexpr std::array kReservedKwargs = {"messages", "tools", "add_generation_prompt"};
constexpr std::array kEfforts = {"none", "minimal", "low",    "medium",
                                 "high", "xhigh",   "x-high", "max"};

void read_thinking(FieldReader& fields, Json& kwargs) {
  if (const auto effort = fields.text("reasoning_effort")) {
    if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end()) {
      fields.fail("reasoning_effort",
                  fmt::format("is {}; it must be none, minimal, low, medium, high, xhigh or max",
                              shown(Json(*effort))));
    }
    kwargs["enable_thinking"] = *effort != "none" && *effort != "minimal";
    kwargs["reasoning_effort"] = *effort == "x-high" ? "xhigh" : *effort;
  }
  if (const Json* thinking = fields.object("thinking")) {
    FieldReader inner(*thinking, "thinking");
    const std::string type = inner.text("type").value_or("");
    if (type != "enabled" && type != "disabled") {
      inner.fail("type", "must be \"enabled\" or \"disabled\"");
    }
    inner.refuse("budget_tokens", "reasoning cannot be limited; use max_completion_tokens");
    if (!inner.ok()) fields.fail(inner.error());
    kwargs["enable_thinking"] = type == "enabled";
  }
  fields.refuse("thinking_budget", "reasoning cannot be limited; use max_completion_tokens");
  if (const auto enabled = fields.boolean("enable_thinking")) kwargs["enable_thinking"] = *enabled;
}

// Whether tools may be called. Only what leaves the model free is supported: its output is not
// constrained, and is returned as text.
bool read_tool_choice(FieldReader& fields, const char* name) {
  const Json* choice = fields.any(name);
  if (!choice || *choice == "auto") return true;
  if (*choice != "none")
    fields.fail(unsupported_field(
        name,
        fmt::format("{} is {}; only \"auto\" and \"none\" are supported", name, shown(*choice))));
  return false;
}

void check_response_format(FieldReader& fields) {
  const Json* format = fields.object("response_format");
  if (!format) return;
  FieldReader inner(*format, "response_format");
  const std::string type = inner.text("type").value_or("");
  if (inner.ok() && type != "text") {
    inner.fail(unsupported_field(
        "response_format",
        fmt::format("response_format.type is {}; only \"text\" is supported", shown(Json(type)))));
  }
  if (!inner.ok()) fields.fail(inner.error());
}

void check_modalities(FieldReader& fields) {
  const Json* modalities = fields.array("modalities");
  if (!modalities) return;
  for (const Json& entry : *modalities) {
    if (entry != "text") {
      fields.fail(unsupported_field(
          "modalities",
          fmt::format("modalities has {}; only \"text\" is supported", shown(entry))));
    }
  }
}

int read_logprobs(FieldReader& fields) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (top && *top > 0 && !wanted) fields.fail("top_logprobs", "needs logprobs to be true");
  return wanted ? static_cast<int>(top.value_or(0)) : -1;
}

}  // namespace

ChatPrompt read_chat_prompt(FieldReader& fields, const RequestLimits& limits) {
  ChatPrompt prompt;
  prompt.messages = read_messages(fields);
  prompt.tools = read_tools(fields, limits.max_tools);
  read_thinking(fields, prompt.kwargs);
  if (const Json* kwargs = fields.object("chat_template_kwargs")) {
    for (const char* name : kReservedKwargs) {
      if (kwargs->contains(name)) {
        fields.fail("chat_template_kwargs", fmt::format("may not set {}", name));
      }
    }
    prompt.kwargs.update(*kwargs);
  }
  prompt.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  fields.refuse("continue_final_message", "a last assistant message is not continued");
  return prompt;
}

std::variant<ChatRequest, ApiError> parse_chat_request(const Json& body, const ServedModel& model,
                                                       const RequestLimits& limits) {
  if (!body.is_object()) return bad_request("the body must be a JSON object");
  FieldReader fields(body);
  ChatRequest request;
  request.prompt = read_chat_prompt(fields, limits);
  request.generation = read_generation_fields(fields, model, limits);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const auto current = fields.integer("max_completion_tokens", 1, kMost);
  const auto legacy = fields.integer("max_tokens", 1, kMost);
  request.generation.max_tokens = current ? current : legacy;
  request.top_logprobs = read_logprobs(fields);
  const bool tools = read_tool_choice(fields, "tool_choice");
  // What the model does not see it does not call.
  if (!read_tool_choice(fields, "function_call") || !tools) request.prompt.tools = Json::array();
  check_response_format(fields);
  check_modalities(fields);
  fields.refuse("audio", "this model writes text only");
  fields.refuse("web_search_options", "there is no web search");
  fields.ignore({"verbosity"});
  if (fields.any("parallel_tool_calls"))
    request.generation.ignored.push_back("parallel_tool_calls");
  if (limits.strict_params) fields.refuse_unknown();
  if (!fields.ok()) return fields.error();
  return request;
}

}  // namespace tessera::server
