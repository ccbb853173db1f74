// Arithmetic as Python does it: integers stay integers, // and % round towards minus infinity, text
// and lists can be added and repeated.
#include <cmath>

#include "base/checked.h"
#include "text/jinja/chars.h"
#include "text/jinja/format.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

[[noreturn]] void bad_operands(std::string_view op, const Value& a, const Value& b) {
  if (a.is(Kind::undefined)) use_of_undefined(a);
  if (b.is(Kind::undefined)) use_of_undefined(b);
  fail("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

bool both_integral(const Value& a, const Value& b) {
  return a.is_integral() && b.is_integral();
}

// Both numbers of a real operation, big integers excluded.
bool both_numbers(std::string_view op, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) bad_operands(op, a, b);
  if (a.is(Kind::big_integer) || b.is(Kind::big_integer))
    fail("arithmetic on integers beyond 64 bits is not supported");
  return true;
}

Value checked(std::optional<std::int64_t> result) {
  if (!result) fail("integer result beyond 64 bits");
  return Value(*result);
}

Value repeat(Runtime& runtime, const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  const bool is_text = value.is_text();
  const std::size_t unit =
      is_text ? value.text().size() : value.list().elements.size() * sizeof(Value);
  const auto bytes = checked_mul(unit, times);
  if (!bytes) Meter::exceeded("bytes of values", runtime.meter.limits().max_allocated_bytes);
  runtime.meter.allocate(*bytes);
  if (is_text) {
    Text out;
    for (std::size_t i = 0; i < (unit == 0 ? 0 : times); ++i) out.append(value.text());
    out.markup = value.text().markup;
    return Value(std::move(out));
  }
  std::vector<Value> out;
  for (std::size_t i = 0; i < (unit == 0 ? 0 : times); ++i)
    out.insert(out.end(), value.list().elements.begin(), value.list().elements.end());
  return runtime.list(std::move(out), value.list().flavour);
}

bool repeatable(const Value& value) {
  return value.is_text() || (value.is(Kind::list) && value.list().flavour <= List::Flavour::tuple);
}

double floor_divide_real(double a, double b) {
  if (b == 0) fail("float floor division by zero");
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (b < 0) != (remainder < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double modulo_real(double a, double b) {
  if (b == 0) fail("float modulo by zero");
  const double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (b < 0) != (remainder < 0) ? remainder + b : remainder;
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1) {
      const auto product = checked_mul(result, base);
      if (!product) fail("integer result beyond 64 bits");
      result = *product;
    }
    exponent /= 2;
    if (exponent == 0) break;
    const auto square = checked_mul(base, base);
    if (!square) fail("integer result beyond 64 bits");
    base = *square;
  }
  return Value(result);
}

}  // namespace

Value add(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) {
    const bool markup = a.text().markup || b.text().markup;
    runtime.meter.allocate(a.text().size() + b.text().size());
    const Value left = markup && !a.text().markup ? escape(runtime, a) : a;
    const Value right = markup && !b.text().markup ? escape(runtime, b) : b;
    Text out = left.text();
    out.append(right.text());
    out.markup = markup;
    return Value(std::move(out));
  }
  if (a.is(Kind::list) && b.is(Kind::list) && repeatable(a) &&
      a.list().flavour == b.list().flavour) {
    runtime.meter.allocate((a.list().elements.size() + b.list().elements.size()) * sizeof(Value));
    std::vector<Value> out = a.list().elements;
    out.insert(out.end(), b.list().elements.begin(), b.list().elements.end());
    return runtime.list(std::move(out), a.list().flavour);
  }
  both_numbers("+", a, b);
  if (both_integral(a, b)) return checked(checked_add(a.integer(), b.integer()));
  return Value(to_real(a) + to_real(b));
}

Value subtract(const Value& a, const Value& b) {
  both_numbers("-", a, b);
  if (!both_integral(a, b)) return Value(to_real(a) - to_real(b));
  std::int64_t result = 0;
  if (__builtin_sub_overflow(a.integer(), b.integer(), &result)) return checked(std::nullopt);
  return Value(result);
}

Value multiply(Runtime& runtime, const Value& a, const Value& b) {
  if (repeatable(a) && b.is_integral()) return repeat(runtime, a, b.integer());
  if (repeatable(b) && a.is_integral()) return repeat(runtime, b, a.integer());
  both_numbers("*", a, b);
  if (both_integral(a, b)) return checked(checked_mul(a.integer(), b.integer()));
  return Value(to_real(a) * to_real(b));
}

Value divide(const Value& a, const Value& b) {
  both_numbers("/", a, b);
  if (to_real(b) == 0) fail("division by zero");
  if (both_integral(a, b))
    return Value(static_cast<double>(static_cast<long double>(a.integer()) /
                                     static_cast<long double>(b.integer())));
  return Value(to_real(a) / to_real(b));
}

Value floor_divide(const Value& a, const Value& b) {
  both_numbers("//", a, b);
  if (!both_integral(a, b)) return Value(floor_divide_real(to_real(a), to_real(b)));
  const std::int64_t x = a.integer();
  const std::int64_t y = b.integer();
  if (y == 0) fail("integer division or modulo by zero");
  if (y == -1) return negate(Value(x));
  return Value(x / y - (x % y != 0 && (x % y < 0) != (y < 0) ? 1 : 0));
}

Value modulo(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_text()) return format_percent(runtime, a.text(), b);
  both_numbers("%", a, b);
  if (!both_integral(a, b)) return Value(modulo_real(to_real(a), to_real(b)));
  const std::int64_t x = a.integer();
  const std::int64_t y = b.integer();
  if (y == 0) fail("integer division or modulo by zero");
  if (y == -1) return Value(std::int64_t{0});
  const std::int64_t remainder = x % y;
  return Value(remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder);
}

Value power(const Value& a, const Value& b) {
  both_numbers("**", a, b);
  if (both_integral(a, b) && b.integer() >= 0) return integer_power(a.integer(), b.integer());
  const double base = to_real(a);
  const double exponent = to_real(b);
  if (base == 0 && exponent < 0) fail("0.0 cannot be raised to a negative power");
  if (base < 0 && std::isfinite(exponent) && exponent != std::floor(exponent))
    fail("a negative number cannot be raised to a fraction");
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent))
    fail("the result of ** is out of range");
  return Value(result);
}

Value negate(const Value& value) {
  if (value.is(Kind::undefined)) use_of_undefined(value);
  if (value.is(Kind::real)) return Value(-value.real());
  if (!value.is_integral()) fail("bad operand type for unary -: '{}'", type_name(value));
  std::int64_t result = 0;
  if (__builtin_sub_overflow(std::int64_t{0}, value.integer(), &result))
    return checked(std::nullopt);
  return Value(result);
}

Value absolute(const Value& value) {
  if (value.is(Kind::undefined)) use_of_undefined(value);
  if (value.is(Kind::real)) return Value(std::fabs(value.real()));
  if (!value.is_integral()) fail("bad operand type for abs(): '{}'", type_name(value));
  return value.integer() < 0 ? negate(value) : Value(value.integer());
}

Value escape(Runtime& runtime, const Value& value) {
  const Text text = to_text(runtime, value);
  if (text.markup) return Value(text);
  Text out;
  text.for_each_run([&out](std::string_view bytes, bool trusted) {
    for (const char c : bytes) {
      const std::string_view reference = c == '&'    ? "&amp;"
                                         : c == '<'  ? "&lt;"
                                         : c == '>'  ? "&gt;"
                                         : c == '\'' ? "&#39;"
                                         : c == '"'  ? "&#34;"
                                                     : std::string_view(&c, 1);
      out.append(reference, trusted);
    }
  });
  out.markup = true;
  return runtime.text(std::move(out));
}

}  // namespace tessera::jinja
