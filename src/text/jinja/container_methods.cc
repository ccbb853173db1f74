// The methods of dict, list, tuple and float.
#include <algorithm>
#include <cmath>

#include "text/jinja/methods.h"
#include "text/jinja/ops.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;
using Flavour = List::Flavour;
using Table = std::pair<std::string_view, Method>;

Value dict_get(Runtime&, const Value& self, const Args& args) {
  const Bound bound("get", args, {"key", "default"}, 1);
  if (!hashable(*bound[0])) fail("unhashable type: '{}'", type_name(*bound[0]));
  if (const Value* hit = self.dict().find(*bound[0])) return *hit;
  return bound[1] != nullptr ? *bound[1] : Value(None{});
}

Value dict_keys(Runtime& runtime, const Value& self, const Args& args) {
  const Bound none("keys", args, {});
  std::vector<Value> out;
  for (const auto& entry : self.dict().entries()) out.push_back(entry.first);
  return runtime.list(std::move(out), Flavour::keys);
}

Value dict_values(Runtime& runtime, const Value& self, const Args& args) {
  const Bound none("values", args, {});
  std::vector<Value> out;
  for (const auto& entry : self.dict().entries()) out.push_back(entry.second);
  return runtime.list(std::move(out), Flavour::values);
}

Value dict_items(Runtime& runtime, const Value& self, const Args& args) {
  const Bound none("items", args, {});
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict().entries()) out.push_back(runtime.tuple({key, value}));
  return runtime.list(std::move(out), Flavour::items);
}

// Values never change, so a copy is the value itself.
Value copy_method(Runtime&, const Value& self, const Args& args) {
  const Bound none("copy", args, {});
  return self;
}

Value list_index(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("index", args, {"value", "start", "stop"}, 1);
  const auto& elements = self.list().elements;
  const auto size = static_cast<std::int64_t>(elements.size());
  const auto clip = [size](std::int64_t i) {
    return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size);
  };
  const std::int64_t stop = clip(bound.integer(2, size));
  for (std::int64_t i = clip(bound.integer(1, 0)); i < stop; ++i)
    if (equal(runtime.meter, elements[static_cast<std::size_t>(i)], *bound[0])) return Value(i);
  fail("the value is not in the list");
}

Value list_count(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("count", args, {"value"}, 1);
  const auto& elements = self.list().elements;
  return Value(static_cast<std::int64_t>(
      std::count_if(elements.begin(), elements.end(),
                    [&](const Value& v) { return equal(runtime.meter, v, *bound[0]); })));
}

Value float_is_integer(Runtime&, const Value& self, const Args& args) {
  const Bound none("is_integer", args, {});
  return Value(std::isfinite(self.real()) && self.real() == std::floor(self.real()));
}

constexpr Table kDictMethods[] = {{"copy", copy_method},
                                  {"get", dict_get},
                                  {"items", dict_items},
                                  {"keys", dict_keys},
                                  {"values", dict_values}};
constexpr Table kListMethods[] = {
    {"copy", copy_method}, {"count", list_count}, {"index", list_index}};
constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMutators[] = {"append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort"};

template <std::size_t size>
Method look_up(const Table (&table)[size], std::string_view name) {
  for (const auto& [known, method] : table)
    if (known == name) return method;
  return nullptr;
}

}  // namespace

Method find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::text:
      return find_text_method(name);
    case Kind::dict:
      return look_up(kDictMethods, name);
    case Kind::list:
      if (!self.list().is_indexable()) return nullptr;
      if (name == "copy" && self.list().flavour != Flavour::list) return nullptr;
      return look_up(kListMethods, name);
    case Kind::real:
      return name == "is_integer" ? float_is_integer : nullptr;
    default:
      return nullptr;
  }
}

bool is_mutating_method(const Value& self, std::string_view name) {
  if (self.is(Kind::dict))
    return std::find(std::begin(kDictMutators), std::end(kDictMutators), name) !=
           std::end(kDictMutators);
  if (self.is(Kind::list) && self.list().flavour == Flavour::list)
    return std::find(std::begin(kListMutators), std::end(kListMutators), name) !=
           std::end(kListMutators);
  return false;
}

}  // namespace tessera::jinja
