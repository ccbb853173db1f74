// libFuzzer entry: the input is a JSON object with messages, tools and kwargs, as a client or a
// tool would send them, rendered through the published chat templates. Whatever tool results and
// tool calls hold, rendering ends within its limits, and fails only with an error of one line.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/chat_template.h"

namespace {

using tessera::ChatInput;
using tessera::ChatTemplate;

constexpr tessera::jinja::RenderLimits kLimits = {.max_steps = 200'000,
                                                  .max_output_bytes = 1u << 20,
                                                  .max_allocated_bytes = 16u << 20,
                                                  .max_depth = 200};

std::vector<ChatTemplate> published_templates() {
  std::vector<ChatTemplate> templates;
  for (const char* name :
       {"Qwen-Qwen3-0.6B", "Qwen3.5-4B", "google-gemma-4-31B-it", "poolside-Laguna-XS.2"}) {
    std::ifstream file(std::string(TESSERA_SOURCE_DIR "/tests/data/templates/") + name + ".jinja");
    const std::string source(std::istreambuf_iterator<char>(file), {});
    auto made = ChatTemplate::create(source, "<s>", "</s>", kLimits);
    if (!made) std::abort();
    templates.push_back(*std::move(made));
  }
  return templates;
}

void render(const ChatTemplate& chat, const ChatInput& input) {
  const auto segments = chat.render(input);
  if (!segments) {
    if (segments.error().message.find('\n') != std::string::npos) std::abort();
    return;
  }
  std::size_t bytes = 0;
  for (const auto& segment : *segments) bytes += segment.text.size();
  if (bytes > kLimits.max_output_bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<ChatTemplate> templates = published_templates();
  const auto body = nlohmann::ordered_json::parse(data, data + size, nullptr, false);
  if (!body.is_object()) return 0;
  ChatInput input;
  input.messages = body.value("messages", nlohmann::ordered_json::array());
  input.tools = body.value("tools", nlohmann::ordered_json());
  input.kwargs = body.value("kwargs", nlohmann::ordered_json());
  for (const ChatTemplate& chat : templates) render(chat, input);
  return 0;
}
