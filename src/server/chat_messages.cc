#include "server/chat_messages.h"

namespace tessera::server {
namespace {

// The text of a content part, or nothing with the failure in `message`.
std::optional<std::string> part_text(const Json& part, FieldReader& message) {
  if (part.is_string()) return part.get<std::string>();
  if (!part.is_object()) {
    message.fail("content", fmt::format("has the part {}; parts are objects", shown(part)));
    return {};
  }
  FieldReader fields(part, message.path_of("content"));
  const std::string type = fields.text("type").value_or("text");
  std::optional<std::string> text;
  if (type == "text" || type == "input_text" || type == "output_text") {
    text = fields.text("text");
  } else if (type == "refusal") {
    text = fields.text("refusal");
  } else {
    message.fail(
        unsupported_field(message.path_of("content"),
                          fmt::format("{} has a part of type {}; this model takes text only",
                                      message.path_of("content"), shown(Json(type)))));
    return {};
  }
  if (!fields.ok()) message.fail(fields.error());
  if (fields.ok() && !text) message.fail("content", "has a text part without text");
  return text;
}

std::string read_content(FieldReader& message) {
  const Json* content = message.any("content");
  if (!content) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    message.fail("content",
                 fmt::format("is {}; it must be a string or a list of parts", shown(*content)));
    return "";
  }
  std::string joined;
  for (const Json& part : *content) {
    const auto text = part_text(part, message);
    if (!text) return "";
    joined += *text;
  }
  return joined;
}

// Templates want an object; what a model once wrote that is none stays text.
Json call_arguments(const Json& function) {
  const auto found = function.find("arguments");
  if (found == function.end() || found->is_null()) return Json::object();
  if (!found->is_string()) return *found;
  const auto& text = found->get_ref<const std::string&>();
  if (text.empty()) return Json::object();
  Result<Json> parsed = parse_json_body(text);
  return parsed && parsed->is_object() ? *std::move(parsed) : *found;
}

Json canonical_call(const Json& function) {
  return {{"name", function["name"]}, {"arguments", call_arguments(function)}};
}

bool is_function(const Json& function) {
  return function.is_object() && function.contains("name") && function["name"].is_string();
}

Json read_calls(FieldReader& message) {
  Json out = Json::array();
  if (const Json* calls = message.array("tool_calls")) {
    for (const Json& call : *calls) {
      if (!call.is_object() || !call.contains("function") || !is_function(call["function"])) {
        message.fail("tool_calls", "has an entry without function.name");
        return out;
      }
      Json entry = Json::object();
      if (call.contains("id")) entry["id"] = call["id"];
      entry["type"] = "function";
      entry["function"] = canonical_call(call["function"]);
      out.push_back(std::move(entry));
    }
  }
  if (const Json* call = message.object("function_call")) {
    if (!is_function(*call)) {
      message.fail("function_call", "has no name");
      return out;
    }
    out.push_back({{"type", "function"}, {"function", canonical_call(*call)}});
  }
  return out;
}

void copy_text(FieldReader& from, const char* name, Json& to) {
  if (const auto text = from.text(name)) to[name] = *text;
}

Json read_message(const Json& source, FieldReader& list, const std::string& path) {
  if (!source.is_object()) {
    list.fail(
        bad_request(fmt::format("{} is {}; it must be an object", path, shown(source)), path));
    return {};
  }
  FieldReader message(source, path);
  std::string role = message.text("role").value_or("");
  if (role == "developer") role = "system";
  if (role == "function") role = "tool";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    message.fail("role", fmt::format("is {}; it must be system, developer, user, assistant or tool",
                                     shown(source.value("role", Json()))));
  }
  Json out = {{"role", role}, {"content", read_content(message)}};
  copy_text(message, "name", out);
  if (role == "tool") copy_text(message, "tool_call_id", out);
  if (role == "assistant") {
    auto reasoning = message.text("reasoning_content");
    if (!reasoning) reasoning = message.text("reasoning");
    if (reasoning) out["reasoning_content"] = *reasoning;
    Json calls = read_calls(message);
    if (!calls.empty()) out["tool_calls"] = std::move(calls);
  }
  if (!message.ok()) list.fail(message.error());
  return out;
}

}  // namespace

Json read_messages(FieldReader& fields) {
  Json out = Json::array();
  const Json* messages = fields.array("messages");
  if (!fields.ok()) return out;
  if (!messages || messages->empty()) {
    fields.fail("messages", "is missing or empty; it must hold at least one message");
    return out;
  }
  for (const Json& message : *messages) {
    out.push_back(read_message(message, fields, fmt::format("messages[{}]", out.size())));
    if (!fields.ok()) break;
  }
  return out;
}

Json read_tools(FieldReader& fields, int most) {
  Json out = Json::array();
  const auto add = [&](const Json* list, const char* name, bool wrapped) {
    if (!list) return;
    if (list->size() > static_cast<std::size_t>(most)) {
      fields.fail(name, fmt::format("has {} entries; at most {} are allowed", list->size(), most));
      return;
    }
    for (const Json& tool : *list) {
      const Json* function = &tool;
      if (wrapped)
        function = tool.is_object() && tool.contains("function") ? &tool["function"] : nullptr;
      if (!function || !is_function(*function)) {
        fields.fail(name,
                    fmt::format("[{}] has no function name; a tool is {{\"type\": \"function\", "
                                "\"function\": {{\"name\": ...}}}}",
                                out.size()));
        return;
      }
      out.push_back(wrapped ? tool : Json{{"type", "function"}, {"function", tool}});
    }
  };
  add(fields.array("tools"), "tools", true);
  add(fields.array("functions"), "functions", false);
  return out;
}

}  // namespace tessera::server
