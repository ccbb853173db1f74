// Layer cuts: which layers go to which shard of a row of devices.
//
//   std::vector<bool> legal = legal_cuts(spec);
//   TESSERA_ASSIGN(std::vector<int> wanted, ends_by_weights(spec.n_layer(), {{3, 1}}));
//   std::optional<std::vector<int>> ends = best_ends(legal, 2, nearest_to(wanted));
//
// A split of L layers over n shards is given by the n ends of its ranges, rising, the last one L;
// every shard has a layer (ranges_of). A cut stands before layer c, 0 < c < L. All functions are
// pure.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/spec.h"
#include "plan/layer_times.h"

namespace tessera {

// The ranges of a split with these ends.
std::vector<LayerRange> ranges_of(std::span<const int> ends);

// [c]: whether a cut may stand before layer c; [0] and [L] are true. A layer that attends over the
// KV of an earlier one must be in the same shard with it.
std::vector<bool> legal_cuts(const ModelSpec& spec);

// Ranges in proportion to the weights: end i is L * (w_0 + ... + w_i) / (w_0 + ... + w_n-1), halves
// rounded away from zero, then moved so that every shard has a layer.
// ErrorCode::invalid for no weight, more weights than layers, or one that is not finite and above
// 0.
Result<std::vector<int>> ends_by_weights(int n_layer, std::span<const double> weights);

// What it costs that `shard` has these layers; nothing where it cannot be.
using RangeCost = std::function<std::optional<double>(int shard, LayerRange layers)>;

// The legal split of the least summed cost, if there is one; among equals, the earliest cuts.
std::optional<std::vector<int>> best_ends(const std::vector<bool>& legal, int n_shard,
                                          const RangeCost& cost);

// How long `shard` takes with these layers; nothing where it cannot be.
using RangeTime = std::function<std::optional<StepTime>(int shard, LayerRange layers)>;

// The legal split that answers a request soonest, of `prompt_ratio` prompt tokens for each that is
// generated: the shards work on a prompt at the same time, so its pace is the slowest one's, and
// take turns with a generated token. Among equals, the most even one.
std::optional<std::vector<int>> fastest_ends(const std::vector<bool>& legal, int n_shard,
                                             const RangeTime& time, double prompt_ratio);

// The cost for best_ends that finds the legal cuts nearest to the given ones.
RangeCost nearest_to(std::vector<int> wanted);

}  // namespace tessera
