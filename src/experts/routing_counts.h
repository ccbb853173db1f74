// RoutingCounts: which experts a model chooses while it serves, and ProfileKeeper, which makes a
// profile of them beside the requests.
//
//   RoutingCounts counts(spec);
//   counts.add(layer, device.routed_pairs());            // in a step: a few relaxed additions
//   counts.add(layer, told);                             // what another process counted of it
//   ProfileKeeper keeper(counts, profile, {.path = "model.spark.csv", .every = 60s});
//
// The keeper's thread takes what was counted since its last look, ages the profile by the rows that
// passed and adds it; then it writes the file, if anything changed. It also does so when it is
// destroyed. A file that cannot be written is counted, told once and tried again. Counts of layers
// that another process has come later than those of this one's, so each layer ages by its own rows.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "device/device.h"
#include "experts/routing_profile.h"

namespace tessera {

class RoutingCounts {
 public:
  explicit RoutingCounts(const ModelSpec& spec);
  // What one of such a model takes of memory, at most.
  static constexpr std::uint64_t bytes(std::uint64_t n_layer, std::uint64_t n_expert) {
    return (2 * n_layer + 1) * n_expert * sizeof(std::uint32_t);
  }

  int n_expert(int layer) const { return at(layer).n_expert; }  // 0: it has none
  int n_used(int layer) const { return at(layer).n_used; }

  // Any thread.
  void add(int layer, std::span<const RoutedPair> pairs);
  // How often each of the layer's experts was chosen.
  void add(int layer, std::span<const std::uint32_t> chosen);

  // What was counted since it was last taken, by one thread. Of a layer, by expert, until the next
  // call.
  std::span<const std::uint32_t> take(int layer);
  // Of all layers, into the profile, after that was aged so that `half_life` rows halve a count.
  // Returns the rows that passed, of the layer with the most.
  double take(RoutingProfile& profile, double half_life);

 private:
  struct Layer {
    int n_expert = 0;
    int n_used = 0;
    std::unique_ptr<std::atomic<std::uint32_t>[]> chosen;  // may wrap; differences are taken
    std::vector<std::uint32_t> taken;
  };
  const Layer& at(int layer) const { return layers_[static_cast<std::size_t>(layer)]; }

  std::vector<Layer> layers_;
  std::vector<std::uint32_t> fresh_;  // of the layer that was taken last
};

struct ProfileKeeperOptions {
  std::string path;  // empty: nothing is written
  std::chrono::milliseconds every{60000};
  double half_life = 1e6;       // rows
  Counter* failures = nullptr;  // of writing; may be null
};

// tessera_moe_profile_failures_total
Counter& profile_failures(MetricsRegistry& metrics);

class ProfileKeeper {
 public:
  ProfileKeeper(RoutingCounts& counts, RoutingProfile profile, const ProfileKeeperOptions& options);
  ~ProfileKeeper();

  // Takes and writes now.
  Status flush();

 private:
  void run();

  RoutingCounts& counts_;
  RoutingProfile profile_;
  ProfileKeeperOptions options_;
  bool changed_ = false;
  bool failing_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera
