// Filters that make or change numbers.
#pragma once

#include "text/jinja/runtime.h"

namespace tessera::jinja {

Value abs_filter(Runtime& runtime, const Value& input, const Args& args);
// int(value, default=0, base=10) and float(value, default=0.0): the default where Python's int()
// and float() refuse the value.
Value int_filter(Runtime& runtime, const Value& input, const Args& args);
Value float_filter(Runtime& runtime, const Value& input, const Args& args);
// round(value, precision=0, method='common'|'ceil'|'floor')
Value round_filter(Runtime& runtime, const Value& input, const Args& args);

}  // namespace tessera::jinja
