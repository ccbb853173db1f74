// ExpertTable: the home of every expert of a shard's layers while it serves.
//
//   ExpertTable table(layout);
//   table.home(layer, 17);                              // ExpertHome::host()
//   table.release(layer, 3);                            // 3 is where it was
//   table.admit(layer, 17);                             // 17 is resident now, in its place
//   split.assign(table, layer, device.routed_pairs());
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

namespace tessera {

struct ExpertSwap {
  int expert = 0;    // becomes resident
  int evicted = -1;  // is so no longer; -1: a spare place is used
};

// The highest number of a worker that has experts of the shard, + 1.
int worker_count(const ShardLayout& layout);

class ExpertTable {
 public:
  explicit ExpertTable(const ShardLayout& layout);

  ExpertHome home(int layer, int expert) const {
    return layers_[index(layer)].now[static_cast<std::size_t>(expert)];
  }
  ExpertHome planned(int layer, int expert) const {
    return layers_[index(layer)].planned[static_cast<std::size_t>(expert)];
  }
  // Whether every pair of the layer is computed by its device; also true of a layer without
  // experts.
  bool all_resident(int layer) const { return layers_[index(layer)].away == 0; }
  int spare(int layer) const { return layers_[index(layer)].spare; }  // free places
  int experts(int layer) const { return static_cast<int>(layers_[index(layer)].now.size()); }

  int first_layer() const { return first_layer_; }
  int end_layer() const { return first_layer_ + static_cast<int>(layers_.size()); }
  int workers() const { return workers_; }  // worker_count()

  // A resident expert leaves its place, which is spare then; it goes back where the plan had it, or
  // to the host.
  void release(int layer, int expert);
  // An expert comes into a spare place.
  void admit(int layer, int expert);

 private:
  struct Layer {
    std::vector<ExpertHome> planned;
    std::vector<ExpertHome> now;
    int away = 0;  // experts that are not resident
    int spare = 0;
  };
  std::size_t index(int layer) const { return static_cast<std::size_t>(layer - first_layer_); }

  int first_layer_ = 0;
  int workers_ = 0;
  std::vector<Layer> layers_;
};

// The pairs of one layer, by who computes them: each pair in exactly one list, rows rising.
class PairSplit {
 public:
  // For batches of at most max_pairs pairs.
  void reserve(const ExpertTable& table, std::size_t max_pairs);
  void assign(const ExpertTable& table, int layer, std::span<const RoutedPair> pairs);
  // A worker's pairs become the host's, for this layer of this step.
  void give_to_host(int worker);

  std::span<const RoutedPair> resident() const { return resident_; }
  std::span<const RoutedPair> of_host() const { return away_[0]; }
  std::span<const RoutedPair> of_worker(int id) const {
    return away_[static_cast<std::size_t>(id) + 1];
  }
  bool all_resident() const { return n_away_ == 0; }

 private:
  std::vector<RoutedPair> resident_;
  std::vector<std::vector<RoutedPair>> away_;  // host, worker 0, worker 1, ...
  std::size_t n_away_ = 0;
};

}  // namespace tessera
