// libFuzzer entry: the input is a template, after a first line that says what `x` is. Under tight
// limits nothing may crash, leak or run long, and a template that parses once always parses.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using nlohmann::ordered_json;
  using namespace tessera::jinja;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t newline = std::min(input.find('\n'), input.size());
  ordered_json x = ordered_json::parse(input.substr(0, newline), nullptr, false);
  if (x.is_discarded()) x = std::string(input.substr(0, newline));

  const auto compiled = Template::parse(input.substr(std::min(newline + 1, input.size())));
  if (!compiled) return 0;
  const ordered_json messages = {
      {{"role", "user"}, {"content", "Hé \xF0\x9F\x8C\x8D <b>"}},
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls", {{{"name", "f"}, {"arguments", {{"a", {1, 2.5, true}}}}}}}}};
  Inputs inputs;
  inputs.data.emplace_back("x", &x);
  inputs.data.emplace_back("messages", &messages);
  inputs.trusted.emplace_back("bos_token", "<s>");
  RenderOptions options;
  options.limits = {.max_steps = 20'000,
                    .max_output_bytes = 64u << 10,
                    .max_allocated_bytes = 4u << 20,
                    .max_depth = 200};
  const auto segments = compiled->render(inputs, options);
  if (!segments) {
    if (segments.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  bool trusted = segments->empty() || !segments->front().trusted;
  for (const Segment& segment : *segments) {
    if (segment.text.empty() || segment.trusted == trusted) std::abort();
    trusted = segment.trusted;
  }
  return 0;
}
