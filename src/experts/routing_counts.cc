#include "experts/routing_counts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/log.h"

namespace tessera {

RoutingCounts::RoutingCounts(const ModelSpec& spec) {
  for (const LayerSpec& spec_layer : spec.layers) {
    Layer& layer = layers_.emplace_back();
    if (!spec_layer.moe) continue;
    layer.n_expert = spec_layer.moe->n_expert;
    layer.n_used = spec_layer.moe->n_used;
    const auto n = static_cast<std::size_t>(layer.n_expert);
    layer.chosen = std::make_unique<std::atomic<std::uint32_t>[]>(n);
    layer.taken.resize(n);
    fresh_.resize(std::max(fresh_.size(), n));
  }
}

void RoutingCounts::add(int layer, std::span<const RoutedPair> pairs) {
  std::atomic<std::uint32_t>* chosen = at(layer).chosen.get();
  if (chosen == nullptr) return;
  for (const RoutedPair& pair : pairs) chosen[pair.expert].fetch_add(1, std::memory_order_relaxed);
}

void RoutingCounts::add(int layer, std::span<const std::uint32_t> chosen) {
  const Layer& own = at(layer);
  for (std::size_t e = 0; e < chosen.size(); ++e)
    own.chosen[e].fetch_add(chosen[e], std::memory_order_relaxed);
}

std::span<const std::uint32_t> RoutingCounts::take(int layer) {
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  for (std::size_t e = 0; e < own.taken.size(); ++e) {
    const std::uint32_t now = own.chosen[e].load(std::memory_order_relaxed);
    fresh_[e] = now - own.taken[e];
    own.taken[e] = now;
  }
  return std::span(fresh_).first(own.taken.size());
}

double RoutingCounts::take(RoutingProfile& profile, double half_life) {
  double most = 0.0;
  for (int layer = 0; std::cmp_less(layer, layers_.size()); ++layer) {
    const std::span<const std::uint32_t> news = take(layer);
    const double pairs = std::accumulate(news.begin(), news.end(), 0.0);
    if (pairs == 0.0) continue;
    const double rows = pairs / n_used(layer);
    profile.age(layer, std::exp2(-rows / half_life));
    for (std::size_t e = 0; e < news.size(); ++e)
      profile.add({.layer = layer, .expert = static_cast<int>(e)}, news[e]);
    most = std::max(most, rows);
  }
  return most;
}

Counter& profile_failures(MetricsRegistry& metrics) {
  return metrics.counter("tessera_moe_profile_failures_total",
                         "Times that the routing profile could not be kept, by reason.",
                         {{"reason", "write"}});
}

ProfileKeeper::ProfileKeeper(RoutingCounts& counts, RoutingProfile profile,
                             const ProfileKeeperOptions& options)
    : counts_(counts), profile_(std::move(profile)), options_(options) {
  thread_ = std::thread([this] { run(); });
}

ProfileKeeper::~ProfileKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  (void)flush();
}

Status ProfileKeeper::flush() {
  const std::lock_guard lock(mutex_);
  changed_ |= counts_.take(profile_, options_.half_life) > 0.0;
  if (!changed_ || options_.path.empty()) return {};
  Status status = profile_.write(options_.path);
  if (!status && options_.failures != nullptr) options_.failures->add();
  if (!status && !failing_) log_warn("the routing profile is not kept: {}", status.error().message);
  failing_ = !status.ok();
  changed_ = failing_;
  return status;
}

void ProfileKeeper::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, options_.every, [this] { return stop_; })) return;
    }
    (void)flush();
  }
}

}  // namespace tessera
