// Filters on one text or one plain value.
#include <algorithm>

#include "text/jinja/chars.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/json.h"
#include "text/jinja/methods.h"
#include "text/jinja/numbers.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

// A filter that is the method of the same name on str(input).
Value by_method(Runtime& runtime, std::string_view method, const Value& input) {
  return find_text_method(method)(runtime, Value(to_text(runtime, input)), Args());
}

Value upper_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("upper", args, {});
  return by_method(runtime, "upper", input);
}

Value lower_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("lower", args, {});
  return by_method(runtime, "lower", input);
}

Value capitalize_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("capitalize", args, {});
  return by_method(runtime, "capitalize", input);
}

// Unlike the method, words start only after white space, dashes and opening brackets.
Value title_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("title", args, {});
  const Text text = to_text(runtime, input);
  const std::string_view bytes = text.view();
  const auto separates = [](char32_t code) {
    return is_space(code) ||
           (code < 0x80 &&
            std::string_view("-({[<").find(static_cast<char>(code)) != std::string_view::npos);
  };
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t end = at;
    const bool separator = separates(char_at(bytes, at).code);
    while (end < bytes.size() && separates(char_at(bytes, end).code) == separator)
      end += char_at(bytes, end).size;
    const std::size_t first = char_at(bytes, at).size;
    out += upper(bytes.substr(at, first));
    out += lower(bytes.substr(at + first, end - at - first));
    at = end;
  }
  return runtime.text(std::move(out), text.all_trusted());
}

Value trim_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("trim", args, {"chars"});
  return runtime.text(strip(to_text(runtime, input), bound.text(0), true, true));
}

Value replace_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  const bool all = bound[2] == nullptr || bound[2]->is(Kind::none);
  return runtime.text(replace(runtime, to_text(runtime, input), to_text(runtime, *bound[0]),
                              to_text(runtime, *bound[1]), all ? -1 : bound.integer(2, -1)));
}

Value center_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("center", args, {"width"});
  return runtime.text(
      centered(runtime, to_text(runtime, input), bound.integer(0, 80), Text(" ", true)));
}

Value indent_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("indent", args, {"width", "first", "blank"});
  const bool blank = bound.flag(2, false);
  const Text indent =
      bound[0] != nullptr && bound[0]->is_text()
          ? bound[0]->text()
          : padded(runtime, Text(),
                   static_cast<std::size_t>(std::max<std::int64_t>(bound.integer(0, 4), 0)), 0,
                   Text(" ", true));
  Text text = to_text(runtime, input);
  text.append("\n", true);  // so that a final line break starts one more line
  Text out;
  if (bound.flag(1, false)) out.append(indent);
  bool first = true;
  for (const Text& line : split_lines(runtime.meter, text, false)) {
    if (!first) {
      out.append("\n", true);
      if (blank || !line.empty()) {
        runtime.meter.allocate(indent.size());
        out.append(indent);
      }
    }
    first = false;
    out.append(line);
  }
  return runtime.text(std::move(out));
}

Value truncate_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("truncate", args, {"length", "killwords", "end", "leeway"});
  const Text dots("...", true);
  const Text& end = bound.text(2) != nullptr ? *bound.text(2) : dots;
  const std::int64_t length = bound.integer(0, 255);
  const std::int64_t leeway =
      bound[3] == nullptr || bound[3]->is(Kind::none) ? 5 : bound.integer(3, 5);
  const auto end_size = static_cast<std::int64_t>(count_chars(end.view()));
  if (length < end_size) fail("truncate() needs a length of at least {}", end_size);
  if (leeway < 0) fail("truncate() needs a leeway of at least 0");
  const Text text = to_text(runtime, input);
  const auto size = static_cast<std::int64_t>(count_chars(text.view()));
  if (size - length <= leeway) return runtime.text(text);
  Text out = text.substr(0, offset_of(text.view(), static_cast<std::size_t>(length - end_size)));
  if (!bound.flag(1, false)) out = out.substr(0, out.view().rfind(' '));
  out.append(end);
  return runtime.text(std::move(out));
}

Value wordcount_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("wordcount", args, {});
  const Text text = to_text(runtime, input);
  runtime.meter.scan(text.size());
  std::int64_t count = 0;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const Char c = char_at(text.view(), at);
    const bool part = c.code == '_' || is_alpha(c.code) || is_numeric(c.code);
    if (part && !in_word) ++count;
    in_word = part;
    at += c.size;
  }
  return Value(count);
}

Value urlencode_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("urlencode", args, {});
  if (!input.is_text() && iterable(input))
    fail("urlencode of a '{}' is not supported", type_name(input));
  const Text text = to_text(runtime, input);
  std::string out;
  for (const char c : text.view()) {
    const bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    if (plain)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return runtime.text(std::move(out), text.all_trusted());
}

Value format_filter(Runtime& runtime, const Value& input, const Args& args) {
  if (!args.positional.empty() && !args.named.empty())
    fail("the filter format takes positional or named arguments, not both");
  std::vector<Dict::Entry> named;
  for (const auto& [key, value] : args.named) named.emplace_back(Value::literal(key), value);
  const Value values = named.empty() ? runtime.list(args.positional, List::Flavour::tuple)
                                     : runtime.dict(std::move(named));
  return format_percent(runtime, to_text(runtime, input), values);
}

Value string_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("string", args, {});
  return input.is_text() ? input : runtime.text(to_text(runtime, input));
}

Value safe_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("safe", args, {});
  Text text = to_text(runtime, input);
  text.markup = true;
  return runtime.text(std::move(text));
}

Value escape_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("escape", args, {});
  return escape(runtime, input);
}

Value forceescape_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("forceescape", args, {});
  Text text = to_text(runtime, input);
  text.markup = false;
  return escape(runtime, runtime.text(std::move(text)));
}

Value default_filter(Runtime&, const Value& input, const Args& args) {
  const Bound bound("default", args, {"default_value", "boolean"});
  if (!input.is(Kind::undefined) && !(bound.flag(1, false) && !truthy(input))) return input;
  return bound[0] != nullptr ? *bound[0] : Value::literal("");
}

Value tojson_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound[1] != nullptr && !bound[1]->is(Kind::none)) {
    style.multiline = true;
    style.item_separator = ",";
    if (bound[1]->is_text()) {
      style.indent = bound[1]->view();
    } else {
      const auto width = static_cast<std::size_t>(std::max<std::int64_t>(bound.integer(1, 0), 0));
      runtime.meter.allocate(width);
      style.indent.assign(width, ' ');
    }
  }
  if (bound[2] != nullptr && !bound[2]->is(Kind::none)) {
    const std::vector<Value> separators = iterate(runtime, *bound[2]);
    if (separators.size() != 2 || !separators[0].is_text() || !separators[1].is_text())
      fail("tojson() needs two strings for 'separators'");
    style.item_separator = separators[0].view();
    style.key_separator = separators[1].view();
  }
  return runtime.text(to_json(runtime, input, style));
}

constexpr std::pair<std::string_view, Filter> kTextFilters[] = {
    {"abs", abs_filter},
    {"capitalize", capitalize_filter},
    {"center", center_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"float", float_filter},
    {"forceescape", forceescape_filter},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"lower", lower_filter},
    {"replace", replace_filter},
    {"round", round_filter},
    {"safe", safe_filter},
    {"string", string_filter},
    {"title", title_filter},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"truncate", truncate_filter},
    {"upper", upper_filter},
    {"urlencode", urlencode_filter},
    {"wordcount", wordcount_filter},
};

}  // namespace

Filter find_text_filter(std::string_view name) {
  for (const auto& [known, filter] : kTextFilters)
    if (known == name) return filter;
  return nullptr;
}

}  // namespace tessera::jinja
