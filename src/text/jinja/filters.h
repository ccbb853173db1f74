// The filters (`value | name(...)`) and tests (`value is name(...)`).
#pragma once

#include "text/jinja/runtime.h"

namespace tessera::jinja {

using Filter = Value (*)(Runtime& runtime, const Value& input, const Args& args);
using Test = bool (*)(Runtime& runtime, const Value& input, const Args& args);

// Null if there is none of that name.
Filter find_filter(std::string_view name);
Filter find_text_filter(std::string_view name);
Filter find_sequence_filter(std::string_view name);
Filter find_select_filter(std::string_view name);
Test find_test(std::string_view name);

Value apply_filter(Runtime& runtime, std::string_view name, const Value& input, const Args& args);
bool apply_test(Runtime& runtime, std::string_view name, const Value& input, const Args& args);

// What `attribute=` of several filters means: a path like "a.b.0", an index, or nothing, which is
// the value itself.
class AttributePath {
 public:
  explicit AttributePath(const Value* path);
  Value of(Runtime& runtime, const Value& value) const;

 private:
  std::vector<Value> parts_;
};

// Text in lower case, for comparisons that ignore it; other values as they are.
Value ignore_case(Runtime& runtime, const Value& value);

// Sorts indexes by their keys. stable; `descending` keeps equal keys in order, as Python does.
std::vector<std::size_t> sorted_order(Runtime& runtime, const std::vector<Value>& keys,
                                      bool descending);

}  // namespace tessera::jinja
