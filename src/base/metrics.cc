#include "base/metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"

namespace tessera {
namespace {

bool is_name(std::string_view name, bool colon_allowed) {
  const auto letter = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (colon_allowed && c == ':');
  };
  if (name.empty() || !letter(name[0])) return false;
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

// Labels as they stand between the braces.
std::string label_text(const MetricsRegistry::Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    CHECK(is_name(name, false), "bad label name '{}'", name);
    if (!out.empty()) out += ',';
    out += name;
    out += "=\"";
    append_escaped(out, value, true);
    out += '"';
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

void append_sample(std::string& out, std::string_view name, std::string_view suffix,
                   const std::string& labels, std::string_view value) {
  out += name;
  out += suffix;
  if (!labels.empty()) {
    out += '{';
    out += labels;
    out += '}';
  }
  out += ' ';
  out += value;
  out += '\n';
}

void append_histogram(std::string& out, std::string_view name, const std::string& labels,
                      const Histogram& histogram) {
  const auto& bounds = histogram.upper_bounds();
  // The buckets are read once, so that the count equals the last bucket while others observe.
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= bounds.size(); ++i) {
    total += histogram.bucket(i);
    const std::string bound = i < bounds.size() ? number(bounds[i]) : "+Inf";
    const std::string with_bound =
        fmt::format("{}{}le=\"{}\"", labels, labels.empty() ? "" : ",", bound);
    append_sample(out, name, "_bucket", with_bound, fmt::format("{}", total));
  }
  append_sample(out, name, "_sum", labels, number(histogram.sum()));
  append_sample(out, name, "_count", labels, fmt::format("{}", total));
}

}  // namespace

Histogram::Histogram(std::vector<double> upper_bounds) : upper_bounds_(std::move(upper_bounds)) {
  CHECK(std::adjacent_find(upper_bounds_.begin(), upper_bounds_.end(), std::greater_equal<>()) ==
            upper_bounds_.end(),
        "histogram bounds must rise");
  buckets_ = std::make_unique<std::atomic<std::uint64_t>[]>(upper_bounds_.size() + 1);
}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;
  const auto bound = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
  const auto index = static_cast<std::size_t>(bound - upper_bounds_.begin());
  buckets_[index].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::uint64_t Histogram::count() const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= upper_bounds_.size(); ++i) total += bucket(i);
  return total;
}

MetricsRegistry::Series& MetricsRegistry::series(std::string_view name, std::string_view help,
                                                 Kind kind, const Labels& labels) {
  CHECK(is_name(name, true), "bad metric name '{}'", name);
  auto [family, added] = families_.try_emplace(std::string(name));
  if (added) {
    family->second.kind = kind;
    family->second.help = help;
  }
  CHECK(family->second.kind == kind, "metric '{}' is used as two kinds", name);
  return family->second.series[label_text(labels)];
}

Counter& MetricsRegistry::counter(std::string_view name, std::string_view help,
                                  const Labels& labels) {
  const std::lock_guard lock(mutex_);
  auto& found = series(name, help, Kind::counter, labels).counter;
  if (!found) found = std::make_unique<Counter>();
  return *found;
}

Gauge& MetricsRegistry::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  auto& found = series(name, help, Kind::gauge, labels).gauge;
  if (!found) found = std::make_unique<Gauge>();
  return *found;
}

Histogram& MetricsRegistry::histogram(std::string_view name, std::string_view help,
                                      const std::vector<double>& upper_bounds,
                                      const Labels& labels) {
  const std::lock_guard lock(mutex_);
  auto& found = series(name, help, Kind::histogram, labels).histogram;
  if (!found) found = std::make_unique<Histogram>(upper_bounds);
  CHECK(found->upper_bounds() == upper_bounds, "histogram '{}' has two lists of bounds", name);
  return *found;
}

std::string MetricsRegistry::render() const {
  static constexpr const char* kKindNames[] = {"counter", "gauge", "histogram"};
  const std::lock_guard lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) {
    out += fmt::format("# HELP {} ", name);
    append_escaped(out, family.help, false);
    out += fmt::format("\n# TYPE {} {}\n", name, kKindNames[static_cast<int>(family.kind)]);
    for (const auto& [labels, entry] : family.series) {
      if (entry.counter)
        append_sample(out, name, "", labels, fmt::format("{}", entry.counter->value()));
      if (entry.gauge) append_sample(out, name, "", labels, number(entry.gauge->value()));
      if (entry.histogram) append_histogram(out, name, labels, *entry.histogram);
    }
  }
  return out;
}

}  // namespace tessera
