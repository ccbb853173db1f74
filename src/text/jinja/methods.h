// The methods of str, list, tuple, dict and float that templates may call.
#pragma once

#include "text/jinja/runtime.h"

namespace tessera::jinja {

using Method = Value (*)(Runtime& runtime, const Value& self, const Args& args);

// The method of the value's type, or null.
Method find_method(const Value& self, std::string_view name);
Method find_text_method(std::string_view name);
// A method that Python has and that changes the value in place, which the sandbox forbids.
bool is_mutating_method(const Value& self, std::string_view name);

// A method taken off its value without being called.
class BoundMethod : public Object {
 public:
  BoundMethod(Value self, Method method) : self_(std::move(self)), method_(method) {}
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override { return method_(runtime, self_, args); }

 private:
  Value self_;
  Method method_;
};

// Parts of text methods that filters use too.

// `text` without the characters of `chars` (white space if null) at its start and end.
Text strip(const Text& text, const Text* chars, bool at_start, bool at_end);
// At most `count` replacements, all if negative.
Text replace(Runtime& runtime, const Text& text, const Text& from, const Text& to,
             std::int64_t count);
Text join(Runtime& runtime, const Text& separator, const std::vector<Text>& parts);
std::vector<Text> split_lines(Meter& meter, const Text& text, bool keep_ends);
std::vector<Text> split_words(Meter& meter, const Text& text, std::int64_t max_splits);
// `text` with `left` and `right` copies of `fill` around it.
Text padded(Runtime& runtime, const Text& text, std::size_t left, std::size_t right,
            const Text& fill);
Text centered(Runtime& runtime, const Text& text, std::int64_t width, const Text& fill);

}  // namespace tessera::jinja
