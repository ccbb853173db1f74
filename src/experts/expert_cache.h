// ExpertCache: which experts become resident while a shard serves, in the spare places of its
// layers (LayerExperts::spare).
//
//   ExpertCache cache(table, {.window_rows = 256});
//   cache.observe(layer, pairs);                       // in a step, of a layer with experts away
//   std::optional<ExpertMove> move = cache.next();     // between steps
//   bool useful = cache.begin(*move);                  // the evicted one leaves the table
//   device.begin_replace_expert(*move);
//   ...                                                // between later steps
//   Result<bool> copied = device.expert_replaced();
//   if (!copied) cache.stop(); else if (*copied) cache.done(*move);
//
// An expert is worth a copy when it was chosen again within the window, never at its first miss,
// and where all places are taken, clearly oftener than the one that it would drive out. Counts are
// aged by halving them every window, so that what was wanted long ago gives way. Experts that are
// resident by plan stay. One expert moves at a time. No allocation after the
// constructor. Threads: that of the shard.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "experts/expert_table.h"

namespace tessera {

struct ExpertCacheOptions {
  int window_rows = 256;   // of a layer, after which counts are halved
  int admit_count = 2;     // choices in the window that an expert needs
  double advantage = 1.5;  // over the count of the one that it drives out
};

class ExpertCache {
 public:
  ExpertCache(ExpertTable& table, const ExpertCacheOptions& options);

  void observe(int layer, std::span<const RoutedPair> pairs);
  // The move that gains most now, if any is worth its copy.
  std::optional<ExpertMove> next();
  // Around the copy of a move. A copy that fails leaves a spare place, and stop() ends all moves:
  // the file that experts come from is broken, or memory lacks. begin() says whether the one that
  // leaves, if any, was chosen since it came.
  bool begin(const ExpertMove& move);
  void done(const ExpertMove& move);
  void stop() { stopped_ = true; }

  // Of the pairs of the last observe(), in a layer with places for experts that come: those of
  // experts that came while serving, and of those that are away.
  int hits() const { return hits_; }
  int misses() const { return misses_; }

 private:
  struct Layer {
    std::vector<std::uint16_t> count;      // [n_expert], aged
    std::vector<std::uint8_t> useful;      // [n_expert], of guests: chosen since they came
    std::vector<std::int32_t> guests;      // residents that came while serving
    std::vector<std::int32_t> candidates;  // away and often enough; bounded, may be out of date
    int pairs = 0;                         // since counts were halved
    int window_pairs = 0;
  };
  Layer& layer_at(int layer) {
    return layers_[static_cast<std::size_t>(layer - table_.first_layer())];
  }
  static void propose(Layer& layer, std::int32_t expert);
  void halve(Layer& layer) const;
  std::optional<ExpertMove> best_of(int number, const Layer& layer, int& gain) const;

  ExpertTable& table_;
  ExpertCacheOptions options_;
  std::vector<Layer> layers_;
  int hits_ = 0, misses_ = 0;
  bool stopped_ = false;
};

}  // namespace tessera
