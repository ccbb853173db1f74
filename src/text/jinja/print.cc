#include "text/jinja/print.h"

#include <cmath>

#include "text/jinja/chars.h"
#include "text/jinja/ops.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;
using Flavour = List::Flavour;

void write_text_repr(Writer& out, const Text& text) {
  const std::string_view bytes = text.view();
  const bool has_single = bytes.find('\'') != std::string_view::npos;
  const bool has_double = bytes.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string quoted(1, quote);
  for (std::size_t at = 0; at < bytes.size();) {
    const Char c = char_at(bytes, at);
    if (c.code == static_cast<char32_t>(quote) || c.code == '\\') {
      quoted += '\\';
      quoted += bytes[at];
    } else if (c.code == '\n') {
      quoted += "\\n";
    } else if (c.code == '\r') {
      quoted += "\\r";
    } else if (c.code == '\t') {
      quoted += "\\t";
    } else if (is_printable(c.code)) {
      quoted += bytes.substr(at, c.size);
    } else {
      const auto code = static_cast<std::uint32_t>(c.code);
      if (code < 0x100)
        quoted += fmt::format("\\x{:02x}", code);
      else if (code < 0x10000)
        quoted += fmt::format("\\u{:04x}", code);
      else
        quoted += fmt::format("\\U{:08x}", code);
    }
    at += c.size;
  }
  quoted += quote;
  out.mix(text);
  out.put(quoted);
}

void write_repr(Writer& out, const Value& value);

void write_elements(Writer& out, const std::vector<Value>& elements) {
  bool first = true;
  for (const Value& element : elements) {
    if (!first) out.put(", ");
    first = false;
    write_repr(out, element);
  }
}

void write_list(Writer& out, const List& list) {
  switch (list.flavour) {
    case Flavour::list:
      out.put("[");
      write_elements(out, list.elements);
      return out.put("]");
    case Flavour::tuple:
    case Flavour::group:
      out.put("(");
      write_elements(out, list.elements);
      return out.put(list.elements.size() == 1 ? ",)" : ")");
    case Flavour::range:
      return out.put(list.range_text);
    case Flavour::generator:
      return out.put("<generator object>");
    case Flavour::keys:
    case Flavour::values:
    case Flavour::items:
      out.put(list.flavour == Flavour::keys     ? "dict_keys(["
              : list.flavour == Flavour::values ? "dict_values(["
                                                : "dict_items([");
      write_elements(out, list.elements);
      return out.put("])");
  }
}

void write_dict(Writer& out, const Dict& dict) {
  out.put("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) out.put(", ");
    first = false;
    write_repr(out, key);
    out.put(": ");
    write_repr(out, value);
  }
  out.put("}");
}

void write_repr(Writer& out, const Value& value) {
  out.runtime().meter.step();
  switch (value.kind()) {
    case Kind::undefined:
      return out.put("Undefined");
    case Kind::none:
      return out.put("None");
    case Kind::boolean:
      return out.put(value.boolean() ? "True" : "False");
    case Kind::integer:
      return out.put(fmt::format("{}", value.integer()));
    case Kind::big_integer:
      return out.put(value.digits());
    case Kind::real:
      return out.put(real_text(value.real()));
    case Kind::text:
      if (!value.text().markup) return write_text_repr(out, value.text());
      out.put("Markup(");
      write_text_repr(out, value.text());
      return out.put(")");
    case Kind::list:
      return write_list(out, value.list());
    case Kind::dict:
      return write_dict(out, value.dict());
    case Kind::object:
      return out.put(fmt::format("<{} object>", value.object()->type_name()));
  }
}

}  // namespace

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

Text to_text(Runtime& runtime, const Value& value) {
  if (value.is_text()) return value.text();
  if (value.is(Kind::undefined)) return {};
  return to_repr(runtime, value);
}

Text to_repr(Runtime& runtime, const Value& value) {
  Writer out(runtime);
  write_repr(out, value);
  return std::move(out).finish();
}

}  // namespace tessera::jinja
