#include "text/jinja/value.h"

#include <algorithm>
#include <numeric>

#include "text/jinja/ops.h"

namespace tessera::jinja {

std::size_t depth_of(const Value& value) {
  if (value.is(Value::Kind::list)) return value.list().depth;
  if (value.is(Value::Kind::dict)) return value.dict().depth();
  return 0;
}

Value Object::attribute(Runtime&, std::string_view name) {
  return Value::undefined(fmt::format("'{}' object has no attribute '{}'", type_name(), name));
}

Value Object::call(Runtime&, const Args&) {
  fail("'{}' object is not callable", type_name());
}

Dict::Dict(std::vector<Entry> entries) : entries_(std::move(entries)) {
  order_.resize(entries_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  const auto before = [this](std::uint32_t a, std::uint32_t b) {
    return compare_keys(entries_[a].first, entries_[b].first) < 0;
  };
  std::stable_sort(order_.begin(), order_.end(), before);

  // Of a run of equal keys the first keeps its place and key, and the last gives the value.
  std::vector<bool> dropped(entries_.size(), false);
  for (std::size_t first = 0, i = 1; i < order_.size(); ++i) {
    if (before(order_[first], order_[i])) {
      first = i;
      continue;
    }
    entries_[order_[first]].second = entries_[order_[i]].second;
    dropped[order_[i]] = true;
  }
  if (std::find(dropped.begin(), dropped.end(), true) != dropped.end()) {
    std::vector<Entry> kept;
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (!dropped[i]) kept.push_back(std::move(entries_[i]));
    *this = Dict(std::move(kept));
    return;
  }
  for (const Entry& entry : entries_)
    depth_ = std::max({depth_, depth_of(entry.first) + 1, depth_of(entry.second) + 1});
}

const Value* Dict::find(const Value& key) const {
  const auto hit = std::lower_bound(
      order_.begin(), order_.end(), key,
      [this](std::uint32_t i, const Value& k) { return compare_keys(entries_[i].first, k) < 0; });
  if (hit == order_.end() || compare_keys(entries_[*hit].first, key) != 0) return nullptr;
  return &entries_[*hit].second;
}

}  // namespace tessera::jinja
