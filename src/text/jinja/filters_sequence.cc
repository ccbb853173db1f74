// Filters on sequences and mappings.
#include <algorithm>

#include "text/jinja/chars.h"
#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/ops.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

using Kind = Value::Kind;
using Flavour = List::Flavour;

Value length_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("length", args, {});
  if (input.is_text()) runtime.meter.scan(input.text().size());
  return Value::count(length(input));
}

Value list_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("list", args, {});
  return runtime.list(iterate(runtime, input));
}

Value first_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("first", args, {});
  if (input.is(Kind::list)) {
    const List& list = input.list();
    if (list.read < list.elements.size()) return list.elements[list.is_lazy() ? list.read++ : 0];
  } else if (const std::vector<Value> items = iterate(runtime, input); !items.empty()) {
    return items.front();
  }
  return Value::undefined("No first item, sequence was empty.");
}

Value last_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("last", args, {});
  if (input.is(Kind::list) && input.list().is_lazy()) fail("'generator' object is not reversible");
  const std::vector<Value> items = iterate(runtime, input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("reverse", args, {});
  std::vector<Value> items = iterate(runtime, input);
  std::reverse(items.begin(), items.end());
  if (input.is_text()) {
    Text out;
    for (const Value& item : items) out.append(item.text());
    return runtime.text(std::move(out));
  }
  if (input.is(Kind::list) && input.list().is_lazy()) return runtime.list(std::move(items));
  return runtime.generator(std::move(items));
}

Value join_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("join", args, {"d", "attribute"});
  const AttributePath path(bound[1]);
  std::vector<Text> parts;
  for (const Value& item : iterate(runtime, input)) {
    parts.push_back(to_text(runtime, path.of(runtime, item)));
    runtime.meter.allocate(sizeof(Text) + parts.back().size());
  }
  const Text separator = bound[0] != nullptr ? to_text(runtime, *bound[0]) : Text();
  return runtime.text(join(runtime, separator, parts));
}

Value items_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound none("items", args, {});
  if (input.is(Kind::undefined)) return runtime.generator({});
  if (!input.is(Kind::dict)) fail("Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [key, value] : input.dict().entries())
    out.push_back(runtime.tuple({key, value}));
  return runtime.generator(std::move(out));
}

Value dictsort_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string_view by = bound.text(1) != nullptr ? bound.text(1)->view() : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  if (input.is(Kind::undefined)) use_of_undefined(input);
  if (!input.is(Kind::dict)) fail("dictsort needs a mapping, not '{}'", type_name(input));
  const auto& entries = input.dict().entries();
  std::vector<Value> keys;
  for (const auto& [key, value] : entries) {
    const Value& sort_key = by == "key" ? key : value;
    keys.push_back(bound.flag(0, false) ? sort_key : ignore_case(runtime, sort_key));
  }
  std::vector<Value> out;
  for (const std::size_t i : sorted_order(runtime, keys, bound.flag(2, false)))
    out.push_back(runtime.tuple({entries[i].first, entries[i].second}));
  return runtime.list(std::move(out));
}

// The sort keys of the items: by an attribute path, or by several with commas between them.
std::vector<Value> sort_keys(Runtime& runtime, const std::vector<Value>& items,
                             const Value* attribute, bool case_sensitive) {
  std::vector<AttributePath> paths;
  if (attribute != nullptr && attribute->is_text()) {
    std::string_view rest = attribute->view();
    while (true) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      const Value part = Value::literal(rest.substr(0, comma));
      paths.emplace_back(&part);
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    paths.emplace_back(attribute);
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const AttributePath& path : paths) {
      const Value part = path.of(runtime, item);
      parts.push_back(case_sensitive ? part : ignore_case(runtime, part));
    }
    keys.push_back(parts.size() == 1 ? parts[0] : runtime.list(std::move(parts), Flavour::tuple));
  }
  return keys;
}

Value sort_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(runtime, input);
  const std::vector<Value> keys = sort_keys(runtime, items, bound[2], bound.flag(1, false));
  std::vector<Value> out;
  for (const std::size_t i : sorted_order(runtime, keys, bound.flag(0, false)))
    out.push_back(items[i]);
  return runtime.list(std::move(out));
}

std::vector<Value> plain_keys(Runtime& runtime, const std::vector<Value>& items,
                              const AttributePath& path, bool case_sensitive) {
  std::vector<Value> keys;
  for (const Value& item : items) {
    const Value key = path.of(runtime, item);
    keys.push_back(case_sensitive ? key : ignore_case(runtime, key));
  }
  return keys;
}

template <bool wants_max>
Value extreme_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound(wants_max ? "max" : "min", args, {"case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(runtime, input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto keys = plain_keys(runtime, items, AttributePath(bound[1]), bound.flag(0, false));
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i)
    if (wants_max ? less(runtime.meter, keys[best], keys[i])
                  : less(runtime.meter, keys[i], keys[best]))
      best = i;
  return items[best];
}

Value unique_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("unique", args, {"case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(runtime, input);
  const auto keys = plain_keys(runtime, items, AttributePath(bound[1]), bound.flag(0, false));
  std::vector<Dict::Entry> seen;
  for (std::size_t i = 0; i < items.size(); ++i) seen.emplace_back(keys[i], items[i]);
  // A dict keeps the first of equal keys in its place, but the value of the last.
  const Value firsts = runtime.dict(std::move(seen));
  std::vector<Value> out;
  for (std::size_t i = 0; i < items.size() && out.size() < firsts.dict().size(); ++i)
    if (compare_keys(firsts.dict().entries()[out.size()].first, keys[i]) == 0)
      out.push_back(items[i]);
  return runtime.generator(std::move(out));
}

Value groupby_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(bound[0]);
  const std::vector<Value> items = iterate(runtime, input);
  std::vector<Value> names;
  std::vector<Value> keys;
  for (const Value& item : items) {
    Value name = path.of(runtime, item);
    if (name.is(Kind::undefined) && bound[1] != nullptr) name = *bound[1];
    keys.push_back(bound.flag(2, false) ? name : ignore_case(runtime, name));
    names.push_back(std::move(name));
  }
  const std::vector<std::size_t> order = sorted_order(runtime, keys, false);
  std::vector<Value> out;
  for (std::size_t i = 0; i < order.size();) {
    const std::size_t first = order[i];
    std::vector<Value> members;
    for (; i < order.size() && equal(runtime.meter, keys[order[i]], keys[first]); ++i)
      members.push_back(items[order[i]]);
    if (members.empty()) members.push_back(items[order[i++]]);  // a key that is not even itself
    out.push_back(runtime.list({names[first], runtime.list(std::move(members))}, Flavour::group));
  }
  return runtime.list(std::move(out));
}

Value sum_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("sum", args, {"attribute", "start"});
  const AttributePath path(bound[0]);
  Value total = bound[1] != nullptr ? *bound[1] : Value(std::int64_t{0});
  if (total.is_text()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : iterate(runtime, input))
    total = add(runtime, total, path.of(runtime, item));
  return total;
}

Value batch_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("batch", args, {"linecount", "fill_with"}, 1);
  const std::int64_t size = bound.integer(0, 1);
  const std::vector<Value> items = iterate(runtime, input);
  std::vector<Value> out;
  std::vector<Value> line;
  for (const Value& item : items) {
    if (static_cast<std::int64_t>(line.size()) == size)
      out.push_back(runtime.list(std::exchange(line, {})));
    line.push_back(item);
  }
  if (!line.empty()) {
    const bool fills = bound[1] != nullptr && !bound[1]->is(Kind::none);
    const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(size, 0));
    if (fills && line.size() < wanted) {
      runtime.meter.step(wanted);
      line.resize(wanted, *bound[1]);
    }
    out.push_back(runtime.list(std::move(line)));
  }
  return runtime.generator(std::move(out));
}

Value slice_filter(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("slice", args, {"slices", "fill_with"}, 1);
  const std::int64_t slices = bound.integer(0, 1);
  const std::vector<Value> items = iterate(runtime, input);
  if (slices == 0) fail("integer division or modulo by zero");
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(slices, 0));
  const bool fills = bound[1] != nullptr && !bound[1]->is(Kind::none);
  std::vector<Value> out;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool longer = i < items.size() % count;
    const std::size_t end = begin + items.size() / count + (longer ? 1 : 0);
    std::vector<Value> part(items.begin() + static_cast<std::ptrdiff_t>(begin),
                            items.begin() + static_cast<std::ptrdiff_t>(end));
    if (fills && !longer) part.push_back(*bound[1]);
    runtime.meter.step();
    out.push_back(runtime.list(std::move(part)));
    begin = end;
  }
  return runtime.generator(std::move(out));
}

constexpr std::pair<std::string_view, Filter> kSequenceFilters[] = {
    {"batch", batch_filter},     {"count", length_filter},      {"dictsort", dictsort_filter},
    {"first", first_filter},     {"groupby", groupby_filter},   {"items", items_filter},
    {"join", join_filter},       {"last", last_filter},         {"length", length_filter},
    {"list", list_filter},       {"max", extreme_filter<true>}, {"min", extreme_filter<false>},
    {"reverse", reverse_filter}, {"slice", slice_filter},       {"sort", sort_filter},
    {"sum", sum_filter},         {"unique", unique_filter},
};

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  for (const auto& [known, filter] : kSequenceFilters)
    if (known == name) return filter;
  return nullptr;
}

}  // namespace tessera::jinja
