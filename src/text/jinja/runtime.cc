#include "text/jinja/runtime.h"

#include <algorithm>

#include "text/jinja/ops.h"

namespace tessera::jinja {

Value Runtime::text(Text text) {
  meter.allocate(text.size() + sizeof(Text));
  return Value(std::move(text));
}

Value Runtime::list(std::vector<Value> elements, List::Flavour flavour) {
  meter.allocate(elements.size() * sizeof(Value) + sizeof(List));
  List list{.elements = std::move(elements), .flavour = flavour, .range_text = {}};
  for (const Value& element : list.elements)
    list.depth = std::max(list.depth, depth_of(element) + 1);
  if (list.depth > kMaxContainerDepth) Meter::exceeded("nested containers", kMaxContainerDepth);
  return Value(std::make_shared<const List>(std::move(list)));
}

Value Runtime::dict(std::vector<Dict::Entry> entries) {
  meter.allocate(entries.size() * (sizeof(Dict::Entry) + 4) + sizeof(Dict));
  meter.step(entries.size());
  for (const auto& [key, value] : entries) {
    if (!hashable(key)) fail("unhashable type: '{}'", type_name(key));
    if (key.is_text()) meter.scan(key.text().size());
  }
  Dict dict(std::move(entries));
  if (dict.depth() > kMaxContainerDepth) Meter::exceeded("nested containers", kMaxContainerDepth);
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

Bound::Bound(std::string_view function, const Args& args, std::initializer_list<const char*> names,
             std::size_t required)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (args.positional.size() > names.size())
    fail("{}() takes at most {} arguments ({} given)", function, names.size(),
         args.positional.size());
  for (std::size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [key, value] : args.named) {
    const auto hit = std::find(names_.begin(), names_.end(), std::string_view(key));
    if (hit == names_.end()) fail("{}() got an unexpected keyword argument '{}'", function, key);
    const auto index = static_cast<std::size_t>(hit - names_.begin());
    if (values_[index] != nullptr)
      fail("{}() got multiple values for argument '{}'", function, key);
    values_[index] = &value;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (values_[i] == nullptr) fail("{}() needs the argument '{}'", function, name(i));
}

bool Bound::flag(std::size_t index, bool otherwise) const {
  return values_[index] == nullptr ? otherwise : truthy(*values_[index]);
}

std::int64_t Bound::integer(std::size_t index, std::int64_t otherwise) const {
  const Value* value = values_[index];
  if (value == nullptr) return otherwise;
  if (!value->is_integral())
    fail("{}() needs an integer for '{}', not '{}'", function_, name(index), type_name(*value));
  return value->integer();
}

const Text* Bound::text(std::size_t index) const {
  const Value* value = values_[index];
  if (value == nullptr || value->is(Value::Kind::none)) return nullptr;
  if (!value->is_text())
    fail("{}() needs a string for '{}', not '{}'", function_, name(index), type_name(*value));
  return &value->text();
}

}  // namespace tessera::jinja
