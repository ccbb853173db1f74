// MetricsRegistry: counters, gauges and histograms with labels, rendered in the Prometheus text
// format.
//
//   Counter& served = metrics.counter("tessera_requests_total", "Requests answered.",
//                                     {{"route", "/v1/models"}, {"status", "200"}});
//   served.add();
//   std::string page = metrics.render();
//
// A registry is made by the program and passed to whoever counts. Looking a series up takes a lock,
// so it is done once and the reference kept; references live as long as the registry. Updating a
// series is lock-free and may happen on any thread. The same name and labels give the same series;
// one name has one kind, one help text (the first) and, for a histogram, one list of bounds:
// anything else is a CHECK, as is a name or label name that Prometheus would refuse. Label values
// may be any bytes.
//
// Units are in the names: seconds, bytes; a counter's name ends in _total.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

class Counter {
 public:
  void add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double value) { value_.fetch_add(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);
  void observe(double value);  // a NaN is dropped
  std::uint64_t count() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  const std::vector<double>& upper_bounds() const { return upper_bounds_; }
  // Observations in bucket i alone (not cumulative); i == upper_bounds().size() is the rest.
  std::uint64_t bucket(std::size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }

 private:
  std::vector<double> upper_bounds_;  // rising; an observation equal to a bound is in its bucket
  std::unique_ptr<std::atomic<std::uint64_t>[]> buckets_;
  std::atomic<double> sum_{0.0};
};

class MetricsRegistry {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  MetricsRegistry() = default;
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  Counter& counter(std::string_view name, std::string_view help, const Labels& labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  Histogram& histogram(std::string_view name, std::string_view help,
                       const std::vector<double>& upper_bounds, const Labels& labels = {});

  // Families in the order of their names, series in the order of their labels.
  std::string render() const;

 private:
  enum class Kind { counter, gauge, histogram };
  struct Series {
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    Kind kind = Kind::counter;
    std::string help;
    std::map<std::string, Series> series;  // by rendered labels
  };

  Series& series(std::string_view name, std::string_view help, Kind kind, const Labels& labels);

  mutable std::mutex mutex_;
  std::map<std::string, Family, std::less<>> families_;
};

}  // namespace tessera
