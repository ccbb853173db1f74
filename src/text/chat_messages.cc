// Reshapes messages into what a template takes.
#include "text/chat_template.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

std::string text_of(const ordered_json& object, const char* key) {
  const auto hit = object.find(key);
  return hit != object.end() && hit->is_string() ? hit->get<std::string>() : std::string();
}

// The texts of a list of parts as one; parts that are not text are an error.
Result<ordered_json> flattened(const ordered_json& parts) {
  std::string text;
  for (const ordered_json& part : parts) {
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string();
    if (!is_text)
      return Error::make(ErrorCode::invalid,
                         "this model's chat template takes text only, not a content part of type "
                         "'{}'",
                         part.is_object() ? text_of(part, "type") : part.type_name());
    text += part["text"].get_ref<const std::string&>();
  }
  return ordered_json(std::move(text));
}

Status adapt_content(ordered_json& message, const ChatCapabilities& can) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (!can.null_content) message["content"] = "";
    return {};
  }
  if (content->is_array() && !can.typed_content) {
    TESSERA_ASSIGN(*content, flattened(*content));
  } else if (content->is_string() && !can.text_content) {
    ordered_json part = {{"type", "text"}, {"text", *content}};
    *content = ordered_json::array({std::move(part)});
  }
  return {};
}

// What a model or client wrote as arguments need not be JSON: then it is kept under one key.
ordered_json parsed_arguments(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return ordered_json::object();
  ordered_json parsed = ordered_json::parse(text, nullptr, false);
  if (parsed.is_object()) return parsed;
  return {{"arguments", text}};
}

void adapt_arguments(ordered_json& message, const ChatCapabilities& can) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (ordered_json& call : *calls) {
    if (!call.is_object()) continue;
    const auto function = call.find("function");
    ordered_json& holder = function != call.end() && function->is_object() ? *function : call;
    const auto arguments = holder.find("arguments");
    if (arguments == holder.end()) continue;
    if (can.object_arguments && arguments->is_string())
      *arguments = parsed_arguments(arguments->get<std::string>());
    else if (!can.object_arguments && can.tool_calls && !arguments->is_string())
      *arguments = arguments->dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
}

// The name of the function that a tool message answers.
std::string called_name(const ordered_json& caller, const ordered_json& result) {
  const std::string id = text_of(result, "tool_call_id");
  if (const auto calls = caller.find("tool_calls"); calls != caller.end() && calls->is_array())
    for (const ordered_json& call : *calls)
      if (call.is_object() && !id.empty() && text_of(call, "id") == id && call.contains("function"))
        return text_of(call["function"], "name");
  return text_of(result, "name");
}

// Moves tool messages into the message before them that is not one.
ordered_json with_tool_responses(const ordered_json& messages) {
  ordered_json out = ordered_json::array();
  for (const ordered_json& message : messages) {
    if (text_of(message, "role") != "tool" || out.empty()) {
      out.push_back(message);
      continue;
    }
    ordered_json& caller = out.back();
    const auto content = message.find("content");
    ordered_json response = {{"name", called_name(caller, message)},
                             {"response", content == message.end() ? ordered_json() : *content}};
    caller["tool_responses"].push_back(std::move(response));
  }
  return out;
}

}  // namespace

Result<ordered_json> adapted_messages(const ordered_json& messages, const ChatCapabilities& can) {
  if (!messages.is_array())
    return Error::make(ErrorCode::invalid, "messages must be a list, not {}", messages.type_name());
  ordered_json out = messages;
  for (ordered_json& message : out) {
    if (!message.is_object())
      return Error::make(ErrorCode::invalid, "a message must be an object, not {}",
                         message.type_name());
    if (!can.developer_role && can.system_role && text_of(message, "role") == "developer")
      message["role"] = "system";
    TESSERA_TRY(adapt_content(message, can));
    adapt_arguments(message, can);
  }
  if (can.tool_responses) return with_tool_responses(out);
  return out;
}

}  // namespace tessera
