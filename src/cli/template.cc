#include "cli/commands.h"
#include "cli/loading.h"
#include "cli/output.h"
#include "cli/text_model.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

// A list of messages, or an object with messages and what else a request may have; further members
// are variables of the template.
Result<ChatInput> read_conversation(const std::string& where, const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return Error::make(ErrorCode::invalid, "{}: not valid JSON", where);
  if (json.is_array()) json = Json{{"messages", std::move(json)}};
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array())
    return Error::make(ErrorCode::invalid,
                       "{}: give a list of messages, or an object with a list 'messages'", where);
  ChatInput input;
  input.kwargs = Json::object();
  input.now = clock_now();
  for (auto& [name, value] : json.items()) {
    if (name == "messages")
      input.messages = std::move(value);
    else if (name == "tools")
      input.tools = std::move(value);
    else if (name == "add_generation_prompt" && value.is_boolean())
      input.add_generation_prompt = value.get<bool>();
    else if ((name == "kwargs" || name == "chat_template_kwargs") && value.is_object())
      input.kwargs.update(value);
    else
      input.kwargs[name] = std::move(value);
  }
  return input;
}

Status render(const Config& config) {
  TESSERA_ASSIGN(const ModelPath model_file, model_path(config));
  TESSERA_ASSIGN(const gguf::File file,
                 gguf::File::open(model_file.path, {.allow_unknown_types = true}));
  TESSERA_ASSIGN(const TextModel model, read_text_model(file, config));
  if (!model.chat) return Error::make(ErrorCode::invalid, "{}", model.no_chat);
  const bool named = config.given("text.messages");
  const std::string path = named ? config.text("text.messages") : "-";
  TESSERA_ASSIGN(const std::string text, read_text_file(path));
  TESSERA_ASSIGN(const ChatInput input,
                 read_conversation(path == "-" ? "standard input" : path, text));
  TESSERA_ASSIGN(const std::vector<jinja::Segment> segments, model.chat->render(input));
  print_out(jinja::concatenated(segments));
  return {};
}

}  // namespace

int template_command(const Config& config) {
  return exit_code(render(config));
}

}  // namespace tessera::cli
