// The operators and conversions of Python on Values. What Python refuses raises a Failure.
#pragma once

#include <compare>
#include <optional>

#include "text/jinja/runtime.h"

namespace tessera::jinja {

std::string_view type_name(const Value& value);
bool truthy(const Value& value);
bool equal(Meter& meter, const Value& a, const Value& b);
// Less than, for the kinds that have an order.
bool less(Meter& meter, const Value& a, const Value& b);
bool contains(Meter& meter, const Value& container, const Value& item);
bool hashable(const Value& value);
// A total order over hashable values in which equal keys are equivalent.
std::weak_ordering compare_keys(const Value& a, const Value& b);

double to_real(const Value& number);
std::size_t length(const Value& value);
// The elements in order: of a list, the keys of a dict, the characters of a text. Takes what is
// left of a generator.
std::vector<Value> iterate(Runtime& runtime, const Value& value);
bool iterable(const Value& value);

Value add(Runtime& runtime, const Value& a, const Value& b);
Value subtract(const Value& a, const Value& b);
Value multiply(Runtime& runtime, const Value& a, const Value& b);
Value divide(const Value& a, const Value& b);
Value floor_divide(const Value& a, const Value& b);
Value modulo(Runtime& runtime, const Value& a, const Value& b);
Value power(const Value& a, const Value& b);
Value negate(const Value& value);
Value absolute(const Value& value);

// value.name: a method or member first, then the key. value[key]: the other way round.
Value get_attribute(Runtime& runtime, const Value& value, std::string_view name);
Value get_item(Runtime& runtime, const Value& value, const Value& key);
Value get_slice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                const Value& step);

Value call(Runtime& runtime, const Value& callee, const Args& args);

// The text with & < > ' and " as character references, marked as markup.
Value escape(Runtime& runtime, const Value& value);

// Raises the error of using an undefined value.
[[noreturn]] void use_of_undefined(const Value& value);

}  // namespace tessera::jinja
