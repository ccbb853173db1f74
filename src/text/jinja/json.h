// JSON in and out of values.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/jinja/runtime.h"

namespace tessera::jinja {

// A request's JSON as a value. Every text in it is untrusted; keys keep their order; an unsigned
// integer beyond int64 stays exact. Fails beyond kMaxContainerDepth or on text that is not UTF-8.
Value from_json(Runtime& runtime, const nlohmann::ordered_json& json);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool multiline = false;  // one element a line, each level indented by `indent`
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// As Python's json.dumps writes it; no HTML escaping. Trusted if every text in the value is.
Text to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace tessera::jinja
