#include "text/jinja/numbers.h"

#include <charconv>
#include <cmath>

#include "text/jinja/chars.h"
#include "text/jinja/methods.h"
#include "text/jinja/ops.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

// Without single underscores between digits; nothing if there are others.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto is_digit_at = [&](std::size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) return std::nullopt;
  }
  return out;
}

// Python's int(text, base).
std::optional<Value> parse_integer(const Text& text, std::int64_t base) {
  const Text stripped = strip(text, nullptr, true, true);
  std::string_view rest = stripped.view();
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.size() > 1 && rest[0] == '0') {
    const char mark = static_cast<char>(rest[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      rest.remove_prefix(2);
      if (rest.starts_with('_')) rest.remove_prefix(1);
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) return std::nullopt;
  const auto digits = without_underscores(rest);
  if (!digits || digits->empty() || digits->front() == '-') return std::nullopt;
  std::int64_t value = 0;
  const std::string signed_digits = (negative ? "-" : "") + *digits;
  const char* last = signed_digits.data() + signed_digits.size();
  const auto [end, error] =
      std::from_chars(signed_digits.data(), last, value, static_cast<int>(base));
  if (end != last) return std::nullopt;
  if (error == std::errc()) return Value(value);
  if (base != 10) fail("integer result beyond 64 bits");
  const std::size_t zeros = digits->find_first_not_of('0');
  return Value(
      BigInt{std::make_shared<const std::string>((negative ? "-" : "") + digits->substr(zeros))});
}

// Python's float(text).
std::optional<double> parse_real(const Text& text) {
  const Text stripped = strip(text, nullptr, true, true);
  const auto plain = without_underscores(stripped.view());
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view rest = *plain;
  const bool negative = rest.front() == '-';
  if (negative || rest.front() == '+') rest.remove_prefix(1);
  if (rest.empty() || rest.front() == '-' || rest.find('(') != std::string_view::npos)
    return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (end != rest.data() + rest.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range)
    value = std::strtod(std::string(rest).c_str(), nullptr);
  return negative ? -value : value;
}

Value integer_of(double value) {
  if (std::isnan(value)) fail("cannot convert float NaN to integer");
  if (std::isinf(value)) fail("cannot convert float infinity to integer");
  const double whole = std::trunc(value);
  if (std::fabs(whole) < 9.2e18) return Value(static_cast<std::int64_t>(whole));
  return BigInt{std::make_shared<const std::string>(fmt::format("{:.0f}", whole))};
}

// To 10^-precision, halves to even, where precision is zero or negative.
std::int64_t round_integer(std::int64_t value, std::int64_t precision) {
  if (precision >= 0) return value;
  if (precision < -18) return 0;
  std::int64_t unit = 1;
  for (std::int64_t i = 0; i < -precision; ++i) unit *= 10;
  const std::int64_t down = (value / unit - (value % unit < 0 ? 1 : 0)) * unit;
  const std::int64_t rest = value - down;
  const bool up = rest * 2 > unit || (rest * 2 == unit && (down / unit) % 2 != 0);
  return up ? down + unit : down;
}

double round_real(double value, std::int64_t precision) {
  if (!std::isfinite(value) || precision > 323) return value;
  if (precision < -308) return std::copysign(0.0, value);
  if (precision >= 0)  // printing rounds the exact binary value, which is what Python does too
    return std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr);
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(value / unit) * unit;
}

}  // namespace

Value abs_filter(Runtime&, const Value& input, const Args& args) {
  const Bound none("abs", args, {});
  return absolute(input);
}

Value int_filter(Runtime&, const Value& input, const Args& args) {
  const Bound bound("int", args, {"default", "base"});
  const Value otherwise = bound[0] != nullptr ? *bound[0] : Value(std::int64_t{0});
  if (input.is(Kind::undefined)) use_of_undefined(input);
  if (input.is_integral()) return Value(input.integer());
  if (input.is(Kind::big_integer)) return input;
  if (input.is(Kind::real)) return std::isnan(input.real()) ? otherwise : integer_of(input.real());
  if (!input.is_text()) return otherwise;
  if (auto value = parse_integer(input.text(), bound.integer(1, 10))) return *value;
  const auto real = parse_real(input.text());
  return real && !std::isnan(*real) ? integer_of(*real) : otherwise;
}

Value float_filter(Runtime&, const Value& input, const Args& args) {
  const Bound bound("float", args, {"default"});
  if (input.is(Kind::undefined)) use_of_undefined(input);
  if (input.is_number()) return Value(to_real(input));
  if (input.is_text())
    if (const auto real = parse_real(input.text())) return Value(*real);
  return bound[0] != nullptr ? *bound[0] : Value(0.0);
}

Value round_filter(Runtime&, const Value& input, const Args& args) {
  const Bound bound("round", args, {"precision", "method"});
  const std::int64_t precision = bound.integer(0, 0);
  const std::string_view method = bound.text(1) != nullptr ? bound.text(1)->view() : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("round() needs the method common, ceil or floor");
  if (input.is(Kind::undefined)) use_of_undefined(input);
  if (!input.is_integral() && !input.is(Kind::real))
    fail("round() needs a number, not '{}'", type_name(input));
  if (method == "common")
    return input.is_integral() ? Value(round_integer(input.integer(), precision))
                               : Value(round_real(input.real(), precision));
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = to_real(input) * unit;
  if (!std::isfinite(scaled)) fail("round() of a number that is too large");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

}  // namespace tessera::jinja
