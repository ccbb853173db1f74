#include "text/chat_template.h"

#include <algorithm>

namespace tessera {
namespace {

using jinja::Segment;
using nlohmann::ordered_json;

constexpr std::string_view kReserved[] = {"messages", "tools", "add_generation_prompt", "bos_token",
                                          "eos_token"};

// Texts that no template contains by itself.
constexpr const char* kUser = "probe-user-text";
constexpr const char* kSystem = "probe-system-text";
constexpr const char* kTool = "probe_tool";
constexpr const char* kOtherTool = "probe_second";
constexpr const char* kKey = "probe_key";
constexpr const char* kValue = "probe_value";
constexpr const char* kResult = "probe-result";
constexpr const char* kReasoning = "probe-reasoning";

ordered_json message(const char* role, ordered_json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

ordered_json tool_call(const char* name, ordered_json arguments) {
  return {{"id", name},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

ordered_json calling_message(ordered_json content, std::vector<ordered_json> calls) {
  ordered_json out = message("assistant", std::move(content));
  out["tool_calls"] = std::move(calls);
  return out;
}

ordered_json list(std::vector<ordered_json> elements) {
  return elements;
}

ordered_json probe_tools() {
  return list({{{"type", "function"},
                {"function",
                 {{"name", kTool},
                  {"description", "A probe."},
                  {"parameters",
                   {{"type", "object"},
                    {"properties", {{kKey, {{"type", "string"}, {"description", "A key."}}}}},
                    {"required", list({kKey})}}}}}}});
}

}  // namespace

Result<ChatTemplate> ChatTemplate::create(std::string_view source, std::string bos_text,
                                          std::string eos_text, jinja::RenderLimits limits) {
  TESSERA_ASSIGN(jinja::Template compiled, jinja::Template::parse(source));
  ChatTemplate out(std::move(compiled), std::move(bos_text), std::move(eos_text), limits);
  TESSERA_TRY(out.probe());
  return out;
}

Status ChatTemplate::probe() {
  ChatCapabilities& can = capabilities_;
  // The prompt of a conversation as it is; nothing if the template refuses it.
  const auto prompt = [this](const ordered_json& messages, ordered_json tools = nullptr,
                             ordered_json kwargs = nullptr) -> std::string {
    ChatInput input;
    input.tools = std::move(tools);
    input.kwargs = std::move(kwargs);
    const auto segments = render_as_is(input, messages);
    return segments ? jinja::concatenated(*segments) : std::string();
  };
  const auto shows = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };

  const auto content = [&can](const char* text) -> ordered_json {
    if (can.text_content) return text;
    return list({{{"type", "text"}, {"text", text}}});
  };

  const ordered_json parts = list({{{"type", "text"}, {"text", kUser}}});
  const std::string from_parts = prompt(list({message("user", parts)}));
  can.text_content = shows(prompt(list({message("user", kUser)})), kUser);
  // A template that only prints the list as it is does not take one.
  can.typed_content =
      shows(from_parts, kUser) && !shows(from_parts, "'text'") && !shows(from_parts, "\"text\"");
  if (!can.text_content && !can.typed_content) {
    const auto plain = render_as_is(ChatInput{}, list({message("user", kUser)}));
    if (!plain) return Error(plain.error()).in("the template cannot render a user message");
    return Error::make(ErrorCode::invalid, "the chat template does not print a user message");
  }

  const ordered_json user = message("user", content(kUser));
  can.system_role = shows(prompt(list({message("system", content(kSystem)), user})), kSystem);
  can.developer_role = shows(prompt(list({message("developer", content(kSystem)), user})), kSystem);
  can.tools = shows(prompt(list({user}), probe_tools()), kTool);
  can.thinking_switch = prompt(list({user}), nullptr, {{"enable_thinking", true}}) !=
                        prompt(list({user}), nullptr, {{"enable_thinking", false}});
  ordered_json thought = message("assistant", content("answer"));
  thought["reasoning_content"] = kReasoning;
  can.reasoning = shows(prompt(list({user, thought})), kReasoning);

  const ordered_json object = {{kKey, kValue}};
  const auto prints_call = [&](ordered_json arguments) {
    const std::string text =
        prompt(list({user, calling_message(content(""), {tool_call(kTool, std::move(arguments))})}),
               probe_tools());
    // The value shows in no tool definition. A printed Python dict is not what a model was taught.
    return shows(text, kValue) && !shows(text, "{'probe_key'");
  };
  can.object_arguments = prints_call(object);
  can.tool_calls = can.object_arguments || prints_call(object.dump());
  const ordered_json arguments = can.object_arguments ? object : ordered_json(object.dump());
  const ordered_json call = calling_message(content(""), {tool_call(kTool, arguments)});
  // Null must read as empty text does: some templates print the word None.
  const ordered_json null_call = calling_message(nullptr, {tool_call(kTool, arguments)});
  const std::string from_null = prompt(list({user, null_call}), probe_tools());
  can.null_content = !from_null.empty() && from_null == prompt(list({user, call}), probe_tools());
  can.parallel_tool_calls =
      shows(prompt(list({user, calling_message(content(""), {tool_call(kTool, arguments),
                                                             tool_call(kOtherTool, arguments)})})),
            kOtherTool);
  ordered_json result = message("tool", content(kResult));
  result["tool_call_id"] = kTool;
  result["name"] = kTool;
  can.tool_results = shows(prompt(list({user, call, result}), probe_tools()), kResult);
  if (!can.tool_results) {
    ordered_json responded = call;
    responded["tool_responses"] = list({{{"name", kTool}, {"response", kResult}}});
    can.tool_responses = shows(prompt(list({user, responded}), probe_tools()), kResult);
  }
  return {};
}

Result<std::vector<Segment>> ChatTemplate::render(const ChatInput& input) const {
  TESSERA_ASSIGN(const ordered_json messages, adapted_messages(input.messages, capabilities_));
  return render_as_is(input, messages);
}

Result<std::vector<Segment>> ChatTemplate::render_as_is(const ChatInput& input,
                                                        const ordered_json& messages) const {
  const ordered_json null;
  const ordered_json prompt = input.add_generation_prompt;
  jinja::Inputs inputs;
  inputs.data.emplace_back("documents", &null);
  if (!input.kwargs.is_null() && !input.kwargs.is_object())
    return Error::make(ErrorCode::invalid, "chat template variables must be an object");
  for (const auto& [name, value] : input.kwargs.items()) {
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved))
      return Error::make(ErrorCode::invalid, "the chat template variable '{}' is set by the server",
                         name);
    inputs.data.emplace_back(name, &value);
  }
  inputs.data.emplace_back("messages", &messages);
  inputs.data.emplace_back("tools", input.tools.empty() ? &null : &input.tools);
  inputs.data.emplace_back("add_generation_prompt", &prompt);
  inputs.trusted.emplace_back("bos_token", bos_text_);
  inputs.trusted.emplace_back("eos_token", eos_text_);
  jinja::RenderOptions options{.limits = limits_, .now = input.now};
  if (!input.exact_time) options.now = std::chrono::floor<std::chrono::days>(input.now);
  return template_.render(inputs, options);
}

}  // namespace tessera
