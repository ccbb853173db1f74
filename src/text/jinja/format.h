// Python's two ways of formatting text: `'%s' % value` and `'{}'.format(value)`.
#pragma once

#include "text/jinja/runtime.h"

namespace tessera::jinja {

// format % values, where a tuple gives several values and a dict gives named ones.
Value format_percent(Runtime& runtime, const Text& format, const Value& values);

// The method str.format.
Value format_method(Runtime& runtime, const Value& self, const Args& args);

// How one value is laid out, in either language.
struct FormatSpec {
  Text fill = Text(" ", true);
  char align = '\0';  // < > ^ = or, by default, that of the value's type
  char sign = '-';    // - + or space
  bool alternate = false;
  std::int64_t width = 0;
  char grouping = '\0';         // , or _
  std::int64_t precision = -1;  // none if negative
  char type = '\0';
};

Text format_value(Runtime& runtime, const Value& value, const FormatSpec& spec);

}  // namespace tessera::jinja
