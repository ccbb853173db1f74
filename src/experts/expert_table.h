// ExpertTable: the home of every expert of a shard's layers while it serves.
//
//   ExpertTable table(layout);
//   LayerHomes& homes = table.layer(3);
//   homes.home(17);                                     // ExpertHome::host()
//   homes.release(5);                                   // 5 is where the plan had it
//   homes.admit(17);                                    // 17 is resident now, in its place
//   split.assign(homes, device.routed_pairs());
//   split.resident();                                   // and split.of_host(), split.of_worker(0)
//
// The only place that decides who computes a pair. It starts as the plan's homes; an expert that
// becomes resident and leaves again goes back to its home by plan, or to the host if that is the
// device. Not thread safe: it belongs to the thread that drives the shard's device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "experts/stream_choice.h"

namespace tessera {

// The highest number of a worker that has experts of the shard, + 1.
int worker_count(const ShardLayout& layout);

// The experts of one layer, by number.
class LayerHomes {
 public:
  LayerHomes() = default;  // of a layer without experts
  explicit LayerHomes(const LayerExperts& planned);

  ExpertHome home(int expert) const { return now_[static_cast<std::size_t>(expert)]; }
  ExpertHome planned(int expert) const { return planned_[static_cast<std::size_t>(expert)]; }
  // Whether every pair of the layer is computed by its device; also true of one without experts.
  bool all_resident() const { return away_ == 0; }
  int spare() const { return spare_; }  // free places
  int experts() const { return static_cast<int>(now_.size()); }

  // A resident expert leaves its place, which is spare then; it goes back where the plan had it, or
  // to the host.
  void release(int expert);
  // An expert comes into a spare place.
  void admit(int expert);

 private:
  std::vector<ExpertHome> planned_;
  std::vector<ExpertHome> now_;
  int away_ = 0;  // experts that are not resident
  int spare_ = 0;
};

class ExpertTable {
 public:
  explicit ExpertTable(const ShardLayout& layout);

  const LayerHomes& layer(int layer) const {
    return layers_[static_cast<std::size_t>(layer - first_layer_)];
  }
  LayerHomes& layer(int layer) { return layers_[static_cast<std::size_t>(layer - first_layer_)]; }

  int first_layer() const { return first_layer_; }
  int end_layer() const { return first_layer_ + static_cast<int>(layers_.size()); }
  int workers() const { return workers_; }  // worker_count()

 private:
  int first_layer_ = 0;
  int workers_ = 0;
  std::vector<LayerHomes> layers_;
};

// The pairs of one layer, by who computes them: each pair in exactly one list, rows rising.
class PairSplit {
 public:
  // For batches of at most max_pairs pairs.
  void reserve(const ExpertTable& table, std::size_t max_pairs);
  void assign(const LayerHomes& homes, std::span<const RoutedPair> pairs);
  // A worker's pairs become the host's, for this layer of this step.
  void give_to_host(int worker);
  // The host's pairs of experts that the device can fetch, [n_expert]; and gives it these.
  StreamChoice::Work streamable(std::span<const std::uint8_t> experts);
  void give_to_device(std::span<const std::uint8_t> experts);

  std::span<const RoutedPair> resident() const { return resident_; }
  std::span<const RoutedPair> of_host() const { return away_[0]; }
  std::span<const RoutedPair> streamed() const { return streamed_; }
  std::span<const RoutedPair> of_worker(int id) const {
    return away_[static_cast<std::size_t>(id) + 1];
  }
  bool all_resident() const { return n_away_ == 0; }
  bool all_here() const { return n_away_ == streamed_.size(); }  // resident or streamed

 private:
  std::vector<RoutedPair> resident_;
  std::vector<RoutedPair> streamed_;
  std::vector<std::vector<RoutedPair>> away_;  // host, worker 0, worker 1, ...
  std::size_t n_away_ = 0;
  std::vector<std::uint8_t> seen_;  // experts, for streamable()
};

}  // namespace tessera
