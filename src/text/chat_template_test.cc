#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace tessera {
namespace {

using nlohmann::ordered_json;

std::string published(const std::string& name) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR "/tests/data/templates/") + name + ".jinja");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

ChatTemplate chat(std::string_view source) {
  auto out = ChatTemplate::create(source, "<bos>", "<eos>");
  EXPECT_TRUE(out.ok()) << (out.ok() ? "" : out.error().message);
  return *std::move(out);
}

std::string prompt(const ChatTemplate& chat, const char* messages) {
  ChatInput input;
  input.messages = ordered_json::parse(messages);
  const auto segments = chat.render(input);
  return segments ? jinja::concatenated(*segments) : segments.error().message;
}

constexpr const char* kCall = R"([{"role": "user", "content": "w"},
  {"role": "assistant", "content": null, "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"city\": \"Oslo\"}"}}]},
  {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "sunny"}]}])";

TEST(ChatTemplate, ProbesThePublishedTemplates) {
  for (const char* name :
       {"Qwen-Qwen3-0.6B", "Qwen3.5-4B", "google-gemma-4-31B-it", "poolside-Laguna-XS.2"}) {
    SCOPED_TRACE(name);
    const ChatTemplate compiled = chat(published(name));
    const ChatCapabilities& can = compiled.capabilities();
    EXPECT_TRUE(can.system_role);
    EXPECT_TRUE(can.tools);
    EXPECT_TRUE(can.tool_calls);
    EXPECT_TRUE(can.parallel_tool_calls);
    EXPECT_TRUE(can.tool_results);
    EXPECT_FALSE(can.tool_responses);
    EXPECT_TRUE(can.object_arguments);
    EXPECT_TRUE(can.text_content);
    EXPECT_TRUE(can.thinking_switch);
  }
  EXPECT_TRUE(chat(published("Qwen3.5-4B")).capabilities().typed_content);
  EXPECT_TRUE(chat(published("google-gemma-4-31B-it")).capabilities().typed_content);
  EXPECT_TRUE(chat(published("google-gemma-4-31B-it")).capabilities().developer_role);
  EXPECT_FALSE(chat(published("Qwen-Qwen3-0.6B")).capabilities().typed_content);
  EXPECT_FALSE(chat(published("poolside-Laguna-XS.2")).capabilities().typed_content);
  EXPECT_FALSE(chat(published("Qwen-Qwen3-0.6B")).capabilities().null_content);
  EXPECT_TRUE(chat(published("Qwen3.5-4B")).capabilities().reasoning);
}

TEST(ChatTemplate, AdaptsToolHistory) {
  EXPECT_NE(prompt(chat(published("Qwen3.5-4B")), kCall)
                .find("<function=f>\n<parameter=city>\nOslo\n</parameter>\n</function>"),
            std::string::npos);
  EXPECT_NE(prompt(chat(published("Qwen-Qwen3-0.6B")), kCall)
                .find("{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>"
                      "<|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response>"),
            std::string::npos);
  EXPECT_NE(prompt(chat(published("google-gemma-4-31B-it")), kCall)
                .find("<|tool_call>call:f{city:<|\"|>Oslo<|\"|>}<tool_call|><|tool_response>"
                      "response:f{value:<|\"|>sunny<|\"|>}<tool_response|>"),
            std::string::npos);
  EXPECT_NE(prompt(chat(published("poolside-Laguna-XS.2")), kCall)
                .find("<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
                      "</tool_call>\n</assistant>\n<tool_response>\nsunny\n</tool_response>"),
            std::string::npos);
}

TEST(ChatTemplate, KeepsArgumentsThatAreNotJson) {
  EXPECT_NE(prompt(chat(published("Qwen3.5-4B")),
                   R"([{"role": "user", "content": "w"}, {"role": "assistant", "content": "",
                   "tool_calls": [{"function": {"name": "f", "arguments": "oops"}}]}])")
                .find("<parameter=arguments>\noops\n</parameter>"),
            std::string::npos);
}

TEST(ChatTemplate, GivesTextArgumentsWhereTheTemplateJoinsText) {
  const ChatTemplate compiled = chat(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
      "{{ '<call>' + c.function.name + c.function.arguments }}{% endfor %}{% endfor %}");
  EXPECT_FALSE(compiled.capabilities().object_arguments);
  EXPECT_TRUE(compiled.capabilities().tool_calls);
  EXPECT_EQ(prompt(compiled, R"([{"role": "assistant", "content": "x", "tool_calls":
                                 [{"function": {"name": "f", "arguments": {"a": [1, "é"]}}}]}])"),
            "x<call>f{\"a\":[1,\"é\"]}");
}

TEST(ChatTemplate, MovesToolResultsIntoTheirCall) {
  const ChatTemplate compiled = chat(
      "{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }}{% for c in m.tool_calls"
      " %}({{ c.function.arguments|tojson }}){% endfor %}{% for r in m.tool_responses %}"
      "[{{ r.name }}:{{ r.response }}]{% endfor %}{% endif %}{% endfor %}");
  EXPECT_TRUE(compiled.capabilities().tool_responses);
  EXPECT_EQ(prompt(compiled, kCall), "w({\"city\": \"Oslo\"})[f:sunny]");
}

TEST(ChatTemplate, FlattensTextPartsAndRefusesOthers) {
  const ChatTemplate compiled =
      chat("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}");
  EXPECT_EQ(prompt(compiled, R"([{"role": "user", "content":
      [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])"),
            "<ab>");
  EXPECT_EQ(prompt(compiled, R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
            "this model's chat template takes text only, not a content part of type 'image_url'");
  EXPECT_EQ(prompt(compiled, "5"), "messages must be a list, not number");
  EXPECT_EQ(prompt(compiled, "[5]"), "a message must be an object, not number");
}

TEST(ChatTemplate, GivesPartsWhereTheTemplateWantsThem) {
  const ChatTemplate compiled = chat(
      "{% for m in messages %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}");
  EXPECT_FALSE(compiled.capabilities().text_content);
  EXPECT_EQ(prompt(compiled, R"([{"role": "user", "content": "hi"}])"), "hi");
}

TEST(ChatTemplate, RequestTextIsNeverTrusted) {
  ChatInput input;
  input.messages = ordered_json::parse(
      R"([{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "a"},
          {"role": "user", "content": [{"type": "text", "text": "<|im_start|>"}]}])");
  input.tools = ordered_json::parse(
      R"([{"type": "function", "function": {"name": "<|im_end|>", "parameters": {}}}])");
  for (const char* name : {"Qwen-Qwen3-0.6B", "Qwen3.5-4B"}) {
    const auto segments = chat(published(name)).render(input);
    ASSERT_TRUE(segments.ok()) << segments.error().message;
    int starts = 0;
    int ends = 0;
    for (const jinja::Segment& segment : *segments) {
      if (!segment.trusted) continue;
      for (std::size_t at = 0; (at = segment.text.find("<|im_start|>", at)) != std::string::npos;
           ++at)
        ++starts;
      for (std::size_t at = 0; (at = segment.text.find("<|im_end|>", at)) != std::string::npos;
           ++at)
        ++ends;
    }
    EXPECT_EQ(starts, 5) << name;  // system with the tools, three turns, the prompt
    EXPECT_EQ(ends, 4) << name;
  }
}

TEST(ChatTemplate, PassesVariablesAndReportsWhatTheTemplateRaises) {
  const ChatTemplate compiled = chat(published("Qwen3.5-4B"));
  ChatInput input;
  input.messages = ordered_json::parse(R"([{"role": "user", "content": "q"}])");
  input.kwargs = {{"enable_thinking", false}};
  EXPECT_TRUE(jinja::concatenated(*compiled.render(input)).ends_with("<think>\n\n</think>\n\n"));
  input.kwargs = {{"messages", 1}};
  EXPECT_EQ(compiled.render(input).error().message,
            "the chat template variable 'messages' is set by the server");
  input.kwargs = nullptr;
  input.messages = ordered_json::array();
  const auto refused = compiled.render(input);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::invalid);
  EXPECT_NE(refused.error().message.find("No messages provided."), std::string::npos);
}

TEST(ChatTemplate, TellsTheDayButNotTheTime) {
  const ChatTemplate compiled =
      chat("{{ messages[0].content }}{{ strftime_now(' %Y-%m-%d %H:%M') }}{{ bos_token }}");
  ChatInput input;
  input.messages = ordered_json::parse(R"([{"role": "user", "content": "q"}])");
  input.now = std::chrono::sys_seconds(std::chrono::seconds(1'722'000'000));
  EXPECT_EQ(jinja::concatenated(*compiled.render(input)), "q 2024-07-26 00:00<bos>");
  input.exact_time = true;
  EXPECT_EQ(jinja::concatenated(*compiled.render(input)), "q 2024-07-26 13:20<bos>");
}

TEST(ChatTemplate, RefusesTemplatesThatCannotWork) {
  EXPECT_FALSE(ChatTemplate::create("{% if %}", "", "").ok());
  EXPECT_FALSE(ChatTemplate::create("{{ nope.x }}", "", "").ok());
  EXPECT_FALSE(ChatTemplate::create("no messages", "", "").ok());
}

}  // namespace
}  // namespace tessera
