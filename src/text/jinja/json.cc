#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/jinja/chars.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;
using nlohmann::ordered_json;

Value text_from_json(Runtime& runtime, const std::string& bytes) {
  if (!valid_utf8(bytes)) fail("a text of the request is not valid UTF-8");
  return runtime.text(bytes, false);
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : out_(runtime), style_(style) {}

  Text finish() && { return std::move(out_).finish(); }

  void value(const Value& v, std::size_t level) {
    out_.runtime().meter.step();
    switch (v.kind()) {
      case Kind::none:
        return out_.put("null");
      case Kind::boolean:
        return out_.put(v.boolean() ? "true" : "false");
      case Kind::integer:
      case Kind::big_integer:
        return out_.put(to_text(out_.runtime(), v).view());
      case Kind::real:
        return out_.put(real(v.real()));
      case Kind::text:
        return string(v.text());
      case Kind::list:
        if (v.list().flavour <= List::Flavour::group) return array(v.list(), level);
        break;
      case Kind::dict:
        return object(v.dict(), level);
      default:
        break;
    }
    fail("Object of type {} is not JSON serializable", type_name(v));
  }

 private:
  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return real_text(value);
  }

  void line(std::size_t level) {
    if (!style_.multiline) return;
    out_.put("\n");
    for (std::size_t i = 0; i < level; ++i) out_.put(style_.indent);
  }

  void array(const List& list, std::size_t level) {
    if (list.elements.empty()) return out_.put("[]");
    out_.put("[");
    bool first = true;
    for (const Value& element : list.elements) {
      if (!first) out_.put(style_.item_separator);
      first = false;
      line(level + 1);
      value(element, level + 1);
    }
    line(level);
    out_.put("]");
  }

  void object(const Dict& dict, std::size_t level) {
    if (dict.size() == 0) return out_.put("{}");
    std::vector<Dict::Entry> entries = dict.entries();
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [this](const auto& a, const auto& b) {
        return less(out_.runtime().meter, a.first, b.first);
      });
    out_.put("{");
    bool first = true;
    for (const auto& [k, v] : entries) {
      if (!first) out_.put(style_.item_separator);
      first = false;
      line(level + 1);
      key(k);
      out_.put(style_.key_separator);
      value(v, level + 1);
    }
    line(level);
    out_.put("}");
  }

  void key(const Value& k) {
    if (k.is_text()) return string(k.text());
    if (!k.is_number() && !k.is(Kind::none))
      fail("keys must be str, int, float, bool or None, not {}", type_name(k));
    out_.put("\"");
    value(k, 0);
    out_.put("\"");
  }

  void string(const Text& text) {
    out_.mix(text);
    std::string quoted = "\"";
    const std::string_view bytes = text.view();
    for (std::size_t at = 0; at < bytes.size();) {
      const Char c = char_at(bytes, at);
      character(quoted, c, bytes.substr(at, c.size));
      at += c.size;
    }
    quoted += '"';
    out_.put(quoted);
  }

  void character(std::string& quoted, Char c, std::string_view bytes) const {
    constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f";
    constexpr std::string_view kNames = "\"\\nrtbf";
    if (const auto hit = kSpecial.find(static_cast<char>(c.code));
        c.code < 0x80 && hit != std::string_view::npos) {
      quoted += '\\';
      quoted += kNames[hit];
    } else if (c.code < 0x20 || (style_.ensure_ascii && c.code >= 0x7F && c.code < 0x10000)) {
      if (c.code == 0x7F)
        quoted += '\x7F';
      else
        quoted += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c.code));
    } else if (style_.ensure_ascii && c.code >= 0x10000) {
      const auto offset = static_cast<std::uint32_t>(c.code) - 0x10000;
      quoted +=
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
    } else {
      quoted += bytes;
    }
  }

  Writer out_;
  const JsonStyle& style_;
};

Value convert(Runtime& runtime, const ordered_json& json, std::size_t depth) {
  if (depth > kMaxContainerDepth) Meter::exceeded("nested containers", kMaxContainerDepth);
  runtime.meter.step();
  switch (json.type()) {
    case ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case ordered_json::value_t::number_integer:
      return Value(json.get<std::int64_t>());
    case ordered_json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return Value(static_cast<std::int64_t>(number));
      return BigInt{std::make_shared<const std::string>(std::to_string(number))};
    }
    case ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case ordered_json::value_t::string:
      return text_from_json(runtime, json.get_ref<const std::string&>());
    case ordered_json::value_t::array: {
      std::vector<Value> elements;
      elements.reserve(json.size());
      for (const auto& element : json) elements.push_back(convert(runtime, element, depth + 1));
      return runtime.list(std::move(elements));
    }
    case ordered_json::value_t::object: {
      std::vector<Dict::Entry> entries;
      entries.reserve(json.size());
      for (const auto& [key, element] : json.items())
        entries.emplace_back(text_from_json(runtime, key), convert(runtime, element, depth + 1));
      return runtime.dict(std::move(entries));
    }
    default:
      return None{};
  }
}

}  // namespace

Value from_json(Runtime& runtime, const ordered_json& json) {
  return convert(runtime, json, 1);
}

Text to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  writer.value(value, 0);
  return std::move(writer).finish();
}

}  // namespace tessera::jinja
