#include "experts/routing_counts.h"

#include <algorithm>
#include <cmath>

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
  }
}

void RoutingCounts::add(int layer, std::span<const RoutedPair> pairs) {
  std::atomic<std::uint32_t>* chosen = layers_[static_cast<std::size_t>(layer)].chosen.get();
  if (chosen == nullptr) return;
  for (const RoutedPair& pair : pairs) chosen[pair.expert].fetch_add(1, std::memory_order_relaxed);
}

double RoutingCounts::take(RoutingProfile& profile, double half_life) {
  std::vector<std::vector<std::uint32_t>> news;
  double rows = 0.0;
  for (Layer& layer : layers_) {
    auto& fresh = news.emplace_back();
    double pairs = 0.0;
    for (int e = 0; e < layer.n_expert; ++e) {
      const auto i = static_cast<std::size_t>(e);
      const std::uint32_t now = layer.chosen[i].load(std::memory_order_relaxed);
      fresh.push_back(now - layer.taken[i]);
      layer.taken[i] = now;
      pairs += fresh.back();
    }
    if (layer.n_used > 0) rows = std::max(rows, pairs / layer.n_used);
  }
  if (rows == 0.0) return 0.0;
  for (std::size_t l = 0; l < news.size(); ++l) {
    const int layer = static_cast<int>(l);
    // Of a layer that another process computes nothing is seen, which says nothing about it.
    if (std::all_of(news[l].begin(), news[l].end(), [](std::uint32_t n) { return n == 0; }))
      continue;
    profile.age(layer, std::exp2(-rows / half_life));
    for (std::size_t e = 0; e < news[l].size(); ++e)
      profile.add({.layer = layer, .expert = static_cast<int>(e)}, news[l][e]);
  }
  return rows;
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
