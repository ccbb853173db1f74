// '{}'.format(value)
#include <algorithm>

#include "text/jinja/chars.h"
#include "text/jinja/format.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::int64_t number(std::string_view text) {
  if (text.size() > 9) fail("the number {} in a format is too big", text.substr(0, 40));
  std::int64_t out = 0;
  for (const char c : text) out = out * 10 + (c - '0');
  return out;
}

// Takes the digits at the start of `text`.
std::string_view take_digits(std::string_view& text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  return digits;
}

bool take_char(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

FormatSpec parse_spec(const Text& text) {
  constexpr std::string_view kAligns = "<>^=";
  FormatSpec spec;
  std::string_view rest = text.view();
  const auto is_align = [&](std::size_t at) {
    return at < rest.size() && kAligns.find(rest[at]) != std::string_view::npos;
  };
  if (rest.empty()) return spec;
  const std::size_t first = char_at(rest, 0).size;
  if (is_align(first)) {
    spec.fill = text.substr(0, first);
    spec.align = rest[first];
    rest.remove_prefix(first + 1);
  } else if (is_align(0)) {
    spec.align = rest[0];
    rest.remove_prefix(1);
  }
  if (!rest.empty() && std::string_view("+- ").find(rest[0]) != std::string_view::npos) {
    spec.sign = rest[0];
    rest.remove_prefix(1);
  }
  spec.alternate = take_char(rest, '#');
  if (take_char(rest, '0') && spec.align == '\0') {
    spec.fill = Text("0", true);
    spec.align = '=';
  }
  spec.width = number(take_digits(rest));
  if (take_char(rest, ','))
    spec.grouping = ',';
  else if (take_char(rest, '_'))
    spec.grouping = '_';
  if (take_char(rest, '.')) {
    const std::string_view digits = take_digits(rest);
    if (digits.empty()) fail("format specifier missing precision");
    spec.precision = number(digits);
  }
  if (rest.size() > 1) fail("invalid format specifier '{}'", text.view().substr(0, 80));
  if (rest.size() == 1) spec.type = rest[0];
  return spec;
}

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Args& args) : runtime_(runtime), args_(args) {}

  Text run(const Text& format, int nesting) {
    if (nesting > 2) fail("max string recursion exceeded");
    const std::string_view bytes = format.view();
    Text out;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
      out.append(format.substr(at, brace - at));
      if (brace == bytes.size()) break;
      if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
        out.append(format.substr(brace, 1));
        at = brace + 2;
      } else if (bytes[brace] == '}') {
        fail("single '}}' encountered in format string");
      } else {
        const std::size_t end = field_end(bytes, brace + 1);
        const Text part = field(format.substr(brace + 1, end - brace - 1), nesting);
        runtime_.meter.allocate(part.size());
        out.append(part);
        at = end + 1;
      }
    }
    return out;
  }

 private:
  static std::size_t field_end(std::string_view bytes, std::size_t at) {
    int depth = 1;
    for (; at < bytes.size(); ++at) {
      if (bytes[at] == '{') ++depth;
      if (bytes[at] == '}' && --depth == 0) return at;
    }
    fail("expected '}}' before end of string");
  }

  // name!conversion:spec
  Text field(const Text& field, int nesting) {
    const std::string_view bytes = field.view();
    std::size_t name_end = 0;
    while (name_end < bytes.size() && bytes[name_end] != '!' && bytes[name_end] != ':') {
      if (bytes[name_end] == '[') name_end = std::min(bytes.find(']', name_end), bytes.size() - 1);
      ++name_end;
    }
    Value value = look_up(bytes.substr(0, name_end));
    std::size_t at = name_end;
    if (at < bytes.size() && bytes[at] == '!') {
      const char conversion = at + 1 < bytes.size() ? bytes[at + 1] : '\0';
      if (conversion == 's')
        value = Value(to_text(runtime_, value));
      else if (conversion == 'r' || conversion == 'a')
        value = Value(to_repr(runtime_, value));
      else
        fail("unknown conversion specifier in a format");
      at += 2;
      if (at < bytes.size() && bytes[at] != ':') fail("expected ':' after conversion specifier");
    }
    const Text spec_text = at < bytes.size() ? run(field.substr(at + 1), nesting + 1) : Text();
    const bool formattable =
        value.is_text() || (value.is_number() && !value.is(Value::Kind::big_integer));
    if (!formattable && !spec_text.empty())
      fail("unsupported format string passed to {}.__format__", type_name(value));
    // A boolean prints as a word unless there is a layout, which makes it the number that it is.
    if (value.is(Value::Kind::boolean) && !spec_text.empty() && !spec_text.view().ends_with('s'))
      value = Value(value.integer());
    return format_value(runtime_, value, parse_spec(spec_text));
  }

  // arg_name ("." attribute | "[" key "]")*
  Value look_up(std::string_view path) {
    const std::size_t head = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, head));
    std::string_view rest = path.substr(head);
    while (!rest.empty()) {
      if (take_char(rest, '.')) {
        const std::size_t end = std::min(rest.find_first_of(".["), rest.size());
        if (end == 0) fail("empty attribute in format string");
        value = get_attribute(runtime_, value, rest.substr(0, end));
        rest.remove_prefix(end);
      } else if (take_char(rest, '[')) {
        const std::size_t end = rest.find(']');
        if (end == std::string_view::npos || end == 0) fail("bad key in format string");
        const std::string_view key = rest.substr(0, end);
        value =
            get_item(runtime_, value, all_digits(key) ? Value(number(key)) : Value::literal(key));
        rest.remove_prefix(end + 1);
      } else {
        fail("only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Value argument(std::string_view name) {
    if (name.empty() || all_digits(name)) {
      const Numbering wanted = name.empty() ? Numbering::automatic : Numbering::manual;
      if (numbering_ != Numbering::undecided && numbering_ != wanted)
        fail("cannot mix automatic and manual numbering in a format");
      numbering_ = wanted;
      const auto index = name.empty() ? next_++ : static_cast<std::size_t>(number(name));
      if (index >= args_.positional.size())
        fail("replacement index {} out of range for positional args", index);
      return args_.positional[index];
    }
    for (const auto& [key, value] : args_.named)
      if (key == name) return value;
    fail("no value for the format field '{}'", name);
  }

  enum class Numbering { undecided, automatic, manual };

  Runtime& runtime_;
  const Args& args_;
  std::size_t next_ = 0;
  Numbering numbering_ = Numbering::undecided;
};

}  // namespace

Value format_method(Runtime& runtime, const Value& self, const Args& args) {
  Text out = BraceFormatter(runtime, args).run(self.text(), 0);
  out.markup = self.text().markup;
  return runtime.text(std::move(out));
}

}  // namespace tessera::jinja
