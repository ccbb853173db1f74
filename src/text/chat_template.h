// ChatTemplate: a model's chat template, with what it can do found out by trying.
//
// create() compiles the Jinja source and renders a few tiny conversations to see which parts of a
// conversation reach the prompt (ChatCapabilities). render() first reshapes what this template
// takes in another form, and then renders:
//   - arguments of past tool calls given as JSON text become objects where the template prints
//     objects, and the other way round;
//   - lists of text parts become one text where the template takes text only; other parts are then
//     an error;
//   - null content becomes empty text where the template cannot take null;
//   - the role developer becomes system where the template does not know it;
//   - tool messages move into `tool_responses` of the calling message where only that is printed.
//
// The segments say which bytes the template wrote (trusted) and which the request did; see
// jinja/template.h. What a template refuses by raise_exception is an Error with code `invalid`.
//
// Thread safe: immutable after create().
//
//   Result<ChatTemplate> chat = ChatTemplate::create(source, "<s>", "</s>");
//   ChatInput input;
//   input.messages = ordered_json::parse(R"([{"role": "user", "content": "Hello"}])");
//   Result<std::vector<jinja::Segment>> prompt = chat->render(input);
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja/template.h"

namespace tessera {

struct ChatInput {
  nlohmann::ordered_json messages;  // a list of objects with role, content, tool_calls, ...
  nlohmann::ordered_json tools;     // a list of OpenAI-style tools; null or empty for none
  bool add_generation_prompt = true;
  // Further variables, such as enable_thinking. An object or null.
  nlohmann::ordered_json kwargs;
  std::chrono::sys_seconds now{};  // for strftime_now
  bool exact_time = false;  // false: the time of day reads as midnight, so prompts can repeat
};

struct ChatCapabilities {
  bool system_role = false;
  bool developer_role = false;
  bool tools = false;       // tool definitions reach the prompt
  bool tool_calls = false;  // past tool calls reach it
  bool parallel_tool_calls = false;
  bool tool_results = false;      // tool messages reach it
  bool tool_responses = false;    // only as `tool_responses` of the calling message
  bool object_arguments = false;  // arguments of past calls are printed from objects
  bool text_content = false;      // content may be text
  bool typed_content = false;     // content may be a list of parts
  bool null_content = false;      // content of a calling message may be null
  bool reasoning = false;         // reasoning_content of the last turn reaches the prompt
  bool thinking_switch = false;   // enable_thinking changes the prompt
};

class ChatTemplate {
 public:
  // Fails if the source does not parse or cannot even render one user message.
  static Result<ChatTemplate> create(std::string_view source, std::string bos_text,
                                     std::string eos_text, jinja::RenderLimits limits = {});

  const ChatCapabilities& capabilities() const { return capabilities_; }
  Result<std::vector<jinja::Segment>> render(const ChatInput& input) const;

 private:
  ChatTemplate(jinja::Template compiled, std::string bos_text, std::string eos_text,
               jinja::RenderLimits limits)
      : template_(std::move(compiled)),
        bos_text_(std::move(bos_text)),
        eos_text_(std::move(eos_text)),
        limits_(limits) {}

  Status probe();
  Result<std::vector<jinja::Segment>> render_as_is(const ChatInput& input,
                                                   const nlohmann::ordered_json& messages) const;

  jinja::Template template_;
  std::string bos_text_;
  std::string eos_text_;
  jinja::RenderLimits limits_;
  ChatCapabilities capabilities_;
};

// The messages in the shape that a template with these capabilities takes.
Result<nlohmann::ordered_json> adapted_messages(const nlohmann::ordered_json& messages,
                                                const ChatCapabilities& capabilities);

}  // namespace tessera
