#include "text/jinja/template.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "text/jinja/eval.h"
#include "text/jinja/json.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace tessera::jinja {
namespace {

// Messages can quote the request: one line of bounded length.
Error error_at(int line, const Failure& failure) {
  constexpr std::size_t kMaxMessage = 600;
  std::string message = failure.message.substr(0, kMaxMessage);
  if (message.size() < failure.message.size()) message += "...";
  for (char& c : message)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  // Line 0: what was put in, not a place of the template.
  if (line == 0) return Error::make(failure.code, "chat template: {}", message);
  return Error::make(failure.code, "chat template line {}: {}", line, message);
}

}  // namespace

Result<Template> Template::parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes)
    return Error::make(ErrorCode::invalid, "chat template: {} bytes are more than the {} allowed",
                       source.size(), kMaxSourceBytes);
  int line = 1;
  std::optional<Parser> parser;
  try {
    parser.emplace(tokenize(source, line));
    return Template(std::make_shared<const Program>(parser->parse()));
  } catch (const Failure& failure) {
    return error_at(parser ? parser->line() : line, failure);
  }
}

Result<std::vector<Segment>> Template::render(const Inputs& inputs,
                                              const RenderOptions& options) const {
  Runtime runtime(options.limits, options.now);
  try {
    Interpreter interpreter(*program_, runtime);
    define_globals(interpreter);
    for (const auto& [name, json] : inputs.data)
      interpreter.define(name, from_json(runtime, *json));
    for (const auto& [name, text] : inputs.trusted)
      interpreter.define(name, runtime.text(text, true));
    std::vector<Segment> segments;
    interpreter.run().for_each_run([&segments](std::string_view bytes, bool trusted) {
      segments.push_back({std::string(bytes), trusted});
    });
    return segments;
  } catch (const Failure& failure) {
    return error_at(runtime.line, failure);
  }
}

std::string concatenated(const std::vector<Segment>& segments) {
  std::string out;
  for (const Segment& segment : segments) out += segment.text;
  return out;
}

}  // namespace tessera::jinja
