#include "text/jinja/filters.h"

#include <algorithm>
#include <numeric>

#include "text/jinja/chars.h"
#include "text/jinja/ops.h"

namespace tessera::jinja {

Filter find_filter(std::string_view name) {
  for (const auto find : {find_text_filter, find_sequence_filter, find_select_filter})
    if (const Filter filter = find(name)) return filter;
  return nullptr;
}

Value apply_filter(Runtime& runtime, std::string_view name, const Value& input, const Args& args) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) fail("no filter named '{}'", name);
  runtime.meter.step();
  return filter(runtime, input, args);
}

bool apply_test(Runtime& runtime, std::string_view name, const Value& input, const Args& args) {
  const Test test = find_test(name);
  if (test == nullptr) fail("no test named '{}'", name);
  runtime.meter.step();
  return test(runtime, input, args);
}

AttributePath::AttributePath(const Value* path) {
  if (path == nullptr || path->is(Value::Kind::none)) return;
  if (!path->is_text()) {
    parts_.push_back(*path);
    return;
  }
  std::string_view rest = path->view();
  while (true) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool index = !part.empty() && part.size() < 10 &&
                       part.find_first_not_of("0123456789") == std::string_view::npos;
    if (index)
      parts_.push_back(Value(static_cast<std::int64_t>(std::stoll(std::string(part)))));
    else
      parts_.push_back(Value::literal(part));
    if (dot == rest.size()) return;
    rest.remove_prefix(dot + 1);
  }
}

Value AttributePath::of(Runtime& runtime, const Value& value) const {
  Value out = value;
  for (const Value& part : parts_) out = get_item(runtime, out, part);
  return out;
}

Value ignore_case(Runtime& runtime, const Value& value) {
  if (!value.is_text()) return value;
  return runtime.text(lower(value.view()), value.text().all_trusted());
}

std::vector<std::size_t> sorted_order(Runtime& runtime, const std::vector<Value>& keys,
                                      bool descending) {
  std::vector<std::size_t> order(keys.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return descending ? less(runtime.meter, keys[b], keys[a])
                      : less(runtime.meter, keys[a], keys[b]);
  });
  return order;
}

}  // namespace tessera::jinja
