// '%s' % value
#include <algorithm>
#include <cmath>

#include "text/jinja/chars.h"
#include "text/jinja/format.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Text& format, const Value& values)
      : runtime_(runtime), format_(format), bytes_(format.view()), values_(values) {}

  Value run() {
    Text out;
    while (at_ < bytes_.size()) {
      const std::size_t percent = std::min(bytes_.find('%', at_), bytes_.size());
      out.append(format_.substr(at_, percent - at_));
      at_ = percent;
      if (at_ < bytes_.size()) out.append(conversion());
    }
    if (is_tuple() ? next_ < values_.list().elements.size() : !used_ && !accepts_unused())
      fail("not all arguments converted during string formatting");
    out.markup = format_.markup;
    return runtime_.text(std::move(out));
  }

 private:
  bool is_tuple() const {
    return values_.is(Kind::list) && values_.list().flavour == List::Flavour::tuple;
  }
  bool accepts_unused() const { return values_.is(Kind::dict) || values_.is(Kind::list); }

  char take() {
    if (at_ >= bytes_.size()) fail("incomplete format");
    return bytes_[at_++];
  }

  const Value& next_value() {
    if (is_tuple()) {
      if (next_ >= values_.list().elements.size()) fail("not enough arguments for format string");
      return values_.list().elements[next_++];
    }
    if (std::exchange(used_, true)) fail("not enough arguments for format string");
    return values_;
  }

  std::int64_t number(char& c) {
    if (c == '*') {
      const Value& v = next_value();
      if (!v.is_integral()) fail("* wants int");
      c = take();
      return v.integer();
    }
    std::int64_t out = 0;
    for (; c >= '0' && c <= '9'; c = take()) {
      out = out * 10 + (c - '0');
      if (out > 1'000'000'000) fail("width or precision too big");
    }
    return out;
  }

  Text conversion() {
    ++at_;  // %
    char c = take();
    const Value* value = nullptr;
    if (c == '(') {
      const std::size_t close = bytes_.find(')', at_);
      if (close == std::string_view::npos) fail("incomplete format key");
      if (!values_.is(Kind::dict)) fail("format requires a mapping");
      const std::string_view key = bytes_.substr(at_, close - at_);
      value = values_.dict().find(key);
      if (value == nullptr) fail("no value for the format key '{}'", key);
      used_ = true;
      at_ = close + 1;
      c = take();
    }
    FormatSpec spec;
    bool left = false;
    bool zero = false;
    for (;; c = take()) {
      if (c == '-')
        left = true;
      else if (c == '0')
        zero = true;
      else if (c == '+')
        spec.sign = '+';
      else if (c == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (c == '#')
        spec.alternate = true;
      else
        break;
    }
    spec.width = number(c);
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (c == '.') {
      c = take();
      spec.precision = std::max<std::int64_t>(number(c), 0);
    }
    while (c == 'l' || c == 'h' || c == 'L') c = take();
    if (c == '%') return Text("%", true);
    spec.align = left ? '<' : '>';
    return converted(c, value != nullptr ? *value : next_value(), spec, zero && !left);
  }

  Text converted(char type, const Value& value, FormatSpec spec, bool zero) {
    switch (type) {
      case 's':
        return format_value(runtime_, Value(to_text(runtime_, value)), spec);
      case 'r':
      case 'a':
        return format_value(runtime_, Value(to_repr(runtime_, value)), spec);
      case 'c':
        if (!value.is_text() || count_chars(value.view()) != 1) fail("%c requires a char");
        return format_value(runtime_, value, spec);
      default:
        break;
    }
    if (zero) {
      spec.fill = Text("0", true);
      spec.align = '=';
    }
    if (!value.is_number())
      fail("%{} format: a number is required, not {}", type, type_name(value));
    if (type == 'd' || type == 'i' || type == 'u' || type == 'x' || type == 'X' || type == 'o')
      return integer(type, value, spec);
    if (std::string_view("eEfFgG").find(type) == std::string_view::npos)
      fail("unsupported format character '{}'", type);
    spec.type = type;
    return format_value(runtime_, Value(to_real(value)), spec);
  }

  Text integer(char type, const Value& value, FormatSpec spec) {
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (value.is(Kind::big_integer)) {
      if (!decimal) fail("%{} of an integer beyond 64 bits is not supported", type);
      return to_text(runtime_, value);
    }
    if (value.is(Kind::real) && !decimal)
      fail("%{} format: an integer is required, not float", type);
    if (value.is(Kind::real) && !(std::fabs(value.real()) < 9.2e18))
      fail("%{} of {} is not supported", type, real_text(value.real()));
    const std::int64_t v =
        value.is(Kind::real) ? static_cast<std::int64_t>(value.real()) : value.integer();
    spec.type = decimal ? 'd' : type;
    if (spec.precision > 0) fail("a precision of %{} is not supported", type);
    spec.precision = -1;
    return format_value(runtime_, Value(v), spec);
  }

  Runtime& runtime_;
  const Text& format_;
  std::string_view bytes_;
  const Value& values_;
  std::size_t at_ = 0;
  std::size_t next_ = 0;  // element of a tuple
  bool used_ = false;     // the single value
};

}  // namespace

Value format_percent(Runtime& runtime, const Text& format, const Value& values) {
  return PercentFormatter(runtime, format, values).run();
}

}  // namespace tessera::jinja
