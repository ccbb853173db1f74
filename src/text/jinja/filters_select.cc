// map, select, reject, selectattr, rejectattr and attr.
#include "text/jinja/chars.h"
#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/ops.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;

std::string name_argument(const Args& args, std::size_t index, const char* what) {
  if (!args.positional[index].is_text()) fail("the name of a {} must be a string", what);
  return std::string(args.positional[index].view());
}

Args arguments_from(const Args& args, std::size_t first) {
  Args out;
  for (std::size_t i = first; i < args.positional.size(); ++i)
    out.positional.push_back(args.positional[i]);
  out.named = args.named;
  return out;
}

Value map_filter(Runtime& runtime, const Value& input, const Args& args) {
  const std::vector<Value> items = iterate(runtime, input);
  std::vector<Value> out;
  if (args.positional.empty()) {
    const Bound bound("map", args, {"attribute", "default"}, 1);
    const AttributePath path(bound[0]);
    for (const Value& item : items) {
      Value value = path.of(runtime, item);
      if (value.is(Kind::undefined) && bound[1] != nullptr) value = *bound[1];
      out.push_back(std::move(value));
    }
  } else {
    const std::string name = name_argument(args, 0, "filter");
    const Args rest = arguments_from(args, 1);
    if (find_filter(name) == nullptr) fail("no filter named '{}'", name);
    for (const Value& item : items) out.push_back(apply_filter(runtime, name, item, rest));
  }
  return runtime.generator(std::move(out));
}

template <bool by_attribute, bool keeps>
Value select_filter(Runtime& runtime, const Value& input, const Args& args) {
  constexpr std::size_t kSkip = by_attribute ? 1 : 0;
  if (args.positional.size() < kSkip) fail("missing parameter for attribute name");
  const AttributePath path(by_attribute ? &args.positional[0] : nullptr);
  const bool has_test = args.positional.size() > kSkip;
  const std::string name = has_test ? name_argument(args, kSkip, "test") : "";
  const Args rest = has_test ? arguments_from(args, kSkip + 1) : Args();
  if (has_test && find_test(name) == nullptr) fail("no test named '{}'", name);
  std::vector<Value> out;
  for (const Value& item : iterate(runtime, input)) {
    const Value value = path.of(runtime, item);
    runtime.meter.step();
    if ((has_test ? apply_test(runtime, name, value, rest) : truthy(value)) == keeps)
      out.push_back(item);
  }
  return runtime.generator(std::move(out));
}

Value attr_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("attr", args, {"name"}, 1);
  if (input.is(Kind::undefined)) use_of_undefined(input);
  const Text* name = bound.text(0);
  if (name == nullptr) fail("attr() needs a name");
  if (input.is(Kind::object)) return input.object()->attribute(runtime, name->view());
  if (const Method method = find_method(input, name->view()))
    return Value(runtime.make<BoundMethod>(input, method));
  return Value::undefined(
      fmt::format("'{}' object has no attribute '{}'", type_name(input), name->view()));
}

constexpr std::pair<std::string_view, Filter> kSelectFilters[] = {
    {"attr", attr_filter},
    {"map", map_filter},
    {"reject", select_filter<false, false>},
    {"rejectattr", select_filter<true, false>},
    {"select", select_filter<false, true>},
    {"selectattr", select_filter<true, true>},
};

}  // namespace

Filter find_select_filter(std::string_view name) {
  for (const auto& [known, filter] : kSelectFilters)
    if (known == name) return filter;
  return nullptr;
}

}  // namespace tessera::jinja
