// Attributes, items and slices.
#include <algorithm>

#include "text/jinja/chars.h"
#include "text/jinja/methods.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

Value missing(Runtime& runtime, const Value& value, const Value& key) {
  const std::string_view type = value.is(Kind::none) ? "None" : type_name(value);
  if (key.is_text())
    return Value::undefined(
        fmt::format("'{} object' has no attribute '{}'", type, key.view().substr(0, 200)));
  return Value::undefined(fmt::format("'{} object' has no element {}", type,
                                      to_repr(runtime, key).view().substr(0, 200)));
}

// The method or member, or nothing; a member that the sandbox hides is undefined.
std::optional<Value> member(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is(Kind::object)) return value.object()->attribute(runtime, name);
  if (value.is(Kind::list) && value.list().flavour == List::Flavour::group) {
    if (name == "grouper") return value.list().elements[0];
    if (name == "list") return value.list().elements[1];
  }
  if (const Method method = find_method(value, name))
    return Value(runtime.make<BoundMethod>(value, method));
  if (is_mutating_method(value, name))
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(value)));
  return std::nullopt;
}

// The position that a Python index means in a sequence of `size`, if there is one.
std::optional<std::size_t> position(const Value& key, std::size_t size) {
  if (!key.is_integral()) return std::nullopt;
  std::int64_t index = key.integer();
  if (index < 0) index += static_cast<std::int64_t>(size);
  if (index < 0 || static_cast<std::size_t>(index) >= size) return std::nullopt;
  return static_cast<std::size_t>(index);
}

std::optional<Value> element(Runtime& runtime, const Value& value, const Value& key) {
  if (value.is(Kind::dict)) {
    if (!hashable(key)) return std::nullopt;
    if (const Value* hit = value.dict().find(key)) return *hit;
  } else if (value.is(Kind::list) && value.list().is_indexable()) {
    const auto& elements = value.list().elements;
    if (const auto at = position(key, elements.size())) return elements[*at];
  } else if (value.is_text() && key.is_integral()) {
    const Text& text = value.text();
    runtime.meter.scan(text.size());
    const auto at = position(key, count_chars(text.view()));
    if (!at) return std::nullopt;
    const std::size_t begin = offset_of(text.view(), *at);
    return runtime.text(text.substr(begin, char_at(text.view(), begin).size));
  }
  return std::nullopt;
}

struct Range {
  std::int64_t start, stop, step;
};

// The slice start:stop:step of a sequence of `size`, with Python's defaults and clipping.
Range clipped(const Value& start, const Value& stop, const Value& step, std::size_t size) {
  const auto given = [](const Value& v) -> std::optional<std::int64_t> {
    if (v.is(Kind::none)) return std::nullopt;
    if (!v.is_integral()) fail("slice indices must be integers or None");
    return v.integer();
  };
  const auto n = static_cast<std::int64_t>(size);
  const std::int64_t by = given(step).value_or(1);
  if (by == 0) fail("slice step cannot be zero");
  const std::int64_t low = by > 0 ? 0 : -1;
  const std::int64_t high = by > 0 ? n : n - 1;
  const auto clip = [&](std::optional<std::int64_t> v, std::int64_t otherwise) {
    if (!v) return otherwise;
    return std::clamp(*v < 0 ? *v + n : *v, low, high);
  };
  return {clip(given(start), by > 0 ? low : high), clip(given(stop), by > 0 ? high : low), by};
}

template <typename Visit>
void for_each_index(const Range& range, Visit visit) {
  if (range.step > 0) {
    for (std::int64_t i = range.start; i < range.stop;) {
      visit(static_cast<std::size_t>(i));
      if (range.step >= range.stop - i) break;
      i += range.step;
    }
  } else {
    for (std::int64_t i = range.start; i > range.stop;) {
      visit(static_cast<std::size_t>(i));
      if (range.step <= range.stop - i) break;
      i += range.step;
    }
  }
}

Value text_slice(Runtime& runtime, const Text& text, const Value& start, const Value& stop,
                 const Value& step) {
  const std::string_view bytes = text.view();
  runtime.meter.scan(bytes.size());
  const Range range = clipped(start, stop, step, count_chars(bytes));
  if (range.step == 1) {
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(range.stop - range.start, 0));
    const std::size_t begin = offset_of(bytes, static_cast<std::size_t>(range.start));
    return runtime.text(text.substr(begin, offset_of(bytes.substr(begin), size)));
  }
  runtime.meter.allocate(bytes.size() * sizeof(std::size_t));
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < bytes.size(); at += char_at(bytes, at).size) offsets.push_back(at);
  Text out;
  for_each_index(range, [&](std::size_t i) {
    out.append(text.substr(offsets[i], char_at(bytes, offsets[i]).size));
  });
  return runtime.text(std::move(out));
}

}  // namespace

Value get_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is(Kind::undefined)) use_of_undefined(value);
  if (auto found = member(runtime, value, name)) return *std::move(found);
  const Value key = Value::literal(name);
  if (auto found = element(runtime, value, key)) return *std::move(found);
  return missing(runtime, value, key);
}

Value get_item(Runtime& runtime, const Value& value, const Value& key) {
  if (value.is(Kind::undefined)) use_of_undefined(value);
  if (auto found = element(runtime, value, key)) return *std::move(found);
  if (key.is_text())
    if (auto found = member(runtime, value, key.view())) return *std::move(found);
  return missing(runtime, value, key);
}

Value get_slice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                const Value& step) {
  if (value.is(Kind::undefined)) use_of_undefined(value);
  if (value.is_text()) return text_slice(runtime, value.text(), start, stop, step);
  if (!value.is(Kind::list) || !value.list().is_indexable())
    return Value::undefined(fmt::format("'{}' object cannot be sliced", type_name(value)));
  const List& list = value.list();
  const Range range = clipped(start, stop, step, list.elements.size());
  std::vector<Value> out;
  for_each_index(range, [&](std::size_t i) { out.push_back(list.elements[i]); });
  if (list.flavour == List::Flavour::range) return runtime.list(std::move(out));
  return runtime.list(std::move(out), list.flavour);
}

}  // namespace tessera::jinja
