// Template: a chat template in the Jinja language, compiled once and rendered many times.
//
// The language and its output are those of Python's Jinja2 as chat templates use it: trim_blocks
// and lstrip_blocks on, no autoescape, an immutable sandbox (no append, no update), the statements
// break and continue, `generation` without effect, `tojson` like json.dumps without ASCII or HTML
// escaping, raise_exception and strftime_now. Templates are one file: include, import, extends and
// block are errors.
//
// What a render yields is segments. The bytes of a trusted segment were written by the template
// (its text, its string literals, numbers, and the texts given as `trusted`); all others come from
// the request, whatever the template did to them. Look for special tokens in trusted segments
// only; a border between two segments is otherwise no token border. The concatenated segments are
// the prompt.
//
// A render is bounded by RenderLimits. Templates and requests may be hostile: every failure is an
// Error of one line that names the template's line. Code `invalid`: the template or the data is
// wrong, or the template called raise_exception; `exhausted`: a limit was passed.
//
// Thread safe: a Template is immutable, and any number of threads may render it at once.
//
//   Result<Template> t = Template::parse("{{ bos_token }}{{ messages[0].content }}");
//   Inputs inputs;
//   inputs.data.emplace_back("messages", &messages);
//   inputs.trusted.emplace_back("bos_token", "<s>");
//   Result<std::vector<Segment>> prompt = t->render(inputs);
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja/limits.h"

namespace tessera::jinja {

struct Program;

struct Segment {
  std::string text;
  bool trusted = false;

  friend bool operator==(const Segment&, const Segment&) = default;
};

struct Inputs {
  // Variables from the request, by name. The documents must outlive the call of render.
  std::vector<std::pair<std::string, const nlohmann::ordered_json*>> data;
  // Text variables from the model, such as bos_token. They win over data of the same name.
  std::vector<std::pair<std::string, std::string>> trusted;
};

struct RenderOptions {
  RenderLimits limits;
  std::chrono::sys_seconds now{};  // what strftime_now prints, read as a calendar without zones
};

class Template {
 public:
  static constexpr std::size_t kMaxSourceBytes = 1u << 20;

  static Result<Template> parse(std::string_view source);
  // Adjacent segments differ in trust, and none is empty.
  Result<std::vector<Segment>> render(const Inputs& inputs,
                                      const RenderOptions& options = {}) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

  std::shared_ptr<const Program> program_;
};

// The segments' texts as one.
std::string concatenated(const std::vector<Segment>& segments);

}  // namespace tessera::jinja
