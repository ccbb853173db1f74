#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/chars.h"
#include "text/jinja/methods.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

// Digits of a real beyond these are not worth their memory; a width is charged like other text.
constexpr std::int64_t kMaxPrecision = 4096;

std::string grouped(std::string digits, char separator, std::size_t every) {
  const std::size_t whole =
      std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  for (std::size_t at = whole; at > every; at -= every) digits.insert(at - every, 1, separator);
  return digits;
}

struct Number {
  bool negative = false;
  std::string prefix;  // 0x and the like
  std::string digits;
};

Number integer_number(std::int64_t value, const FormatSpec& spec) {
  const auto bits = static_cast<std::uint64_t>(value);
  const std::uint64_t magnitude = value < 0 ? 0 - bits : bits;
  Number out{value < 0, "", ""};
  std::size_t every = 4;
  switch (spec.type) {
    case 'x':
      out.digits = fmt::format("{:x}", magnitude);
      break;
    case 'X':
      out.digits = fmt::format("{:X}", magnitude);
      break;
    case 'o':
      out.digits = fmt::format("{:o}", magnitude);
      break;
    case 'b':
      out.digits = fmt::format("{:b}", magnitude);
      break;
    default:
      out.digits = fmt::format("{}", magnitude);
      every = 3;
  }
  if (spec.alternate && every == 4) out.prefix = std::string("0") + spec.type;
  if (spec.grouping != '\0') out.digits = grouped(std::move(out.digits), spec.grouping, every);
  return out;
}

Number real_number(double value, const FormatSpec& spec) {
  if (spec.precision > kMaxPrecision)
    fail("a precision of {} is more than {}", spec.precision, kMaxPrecision);
  const bool percent = spec.type == '%';
  const double magnitude = std::fabs(value) * (percent ? 100 : 1);
  const int precision = static_cast<int>(spec.precision);
  Number out{std::signbit(value) && !std::isnan(value), "", ""};
  if (!std::isfinite(magnitude)) {
    out.digits = real_text(magnitude);
    if (spec.type >= 'A' && spec.type <= 'Z') out.digits = upper(out.digits);
  } else if (spec.type == '\0' && precision < 0) {
    out.digits = real_text(magnitude);
  } else {
    const char type = percent ? 'f' : spec.type == '\0' || spec.type == 'n' ? 'g' : spec.type;
    const std::string format =
        fmt::format("{{:{}.{}{}}}", spec.alternate ? "#" : "", precision < 0 ? 6 : precision, type);
    out.digits = fmt::format(fmt::runtime(format), magnitude);
    if (spec.type == '\0' && out.digits.find_first_of(".e") == std::string::npos)
      out.digits += ".0";
  }
  if (percent) out.digits += '%';
  if (spec.grouping != '\0') out.digits = grouped(std::move(out.digits), spec.grouping, 3);
  return out;
}

Text aligned(Runtime& runtime, Text body, const FormatSpec& spec, char align) {
  const auto size = static_cast<std::int64_t>(count_chars(body.view()));
  if (spec.width <= size) return body;
  const auto missing = static_cast<std::size_t>(spec.width - size);
  const std::size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  return padded(runtime, body, left, missing - left, spec.fill);
}

Text format_number(Runtime& runtime, const Number& number, const FormatSpec& spec) {
  std::string sign = number.negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  sign += number.prefix;
  const char align = spec.align == '\0' ? '>' : spec.align;
  if (align != '=') return aligned(runtime, Text(sign + number.digits, true), spec, align);
  const auto size = static_cast<std::int64_t>(sign.size() + number.digits.size());
  const auto missing = static_cast<std::size_t>(std::max<std::int64_t>(spec.width - size, 0));
  Text out(std::move(sign), true);
  out.append(padded(runtime, Text(number.digits, true), missing, 0, spec.fill));
  return out;
}

}  // namespace

Text format_value(Runtime& runtime, const Value& value, const FormatSpec& spec) {
  const bool real_type =
      spec.type != '\0' && std::string_view("eEfFgG%n").find(spec.type) != std::string_view::npos;
  if (value.is(Kind::real) || (value.is_integral() && real_type && spec.type != 'n')) {
    if (!real_type && spec.type != '\0')
      fail("unknown format code '{}' for object of type 'float'", spec.type);
    return format_number(runtime, real_number(to_real(value), spec), spec);
  }
  const bool plain_boolean = value.is(Kind::boolean) && spec.type == '\0';
  if (value.is_integral() && !plain_boolean) {
    if (std::string_view("dboxXn").find(spec.type) == std::string_view::npos && spec.type != '\0')
      fail("unknown format code '{}' for object of type 'int'", spec.type);
    if (spec.precision >= 0) fail("precision is not allowed for integers");
    return format_number(runtime, integer_number(value.integer(), spec), spec);
  }
  if (spec.type != '\0' && spec.type != 's')
    fail("unknown format code '{}' for object of type '{}'", spec.type, type_name(value));
  if (spec.align == '=') fail("'=' alignment is not allowed for text");
  Text text = to_text(runtime, value);
  if (spec.precision >= 0)
    text = text.substr(0, offset_of(text.view(), static_cast<std::size_t>(spec.precision)));
  return aligned(runtime, std::move(text), spec, spec.align == '\0' ? '<' : spec.align);
}

}  // namespace tessera::jinja
