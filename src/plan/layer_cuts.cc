#include "plan/layer_cuts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace tessera {

std::vector<LayerRange> ranges_of(std::span<const int> ends) {
  std::vector<LayerRange> ranges;
  for (const int end : ends) ranges.push_back({ranges.empty() ? 0 : ranges.back().end, end});
  return ranges;
}

std::vector<bool> legal_cuts(const ModelSpec& spec) {
  std::vector<bool> legal(spec.layers.size() + 1, true);
  for (int layer = 0; layer < spec.n_layer(); ++layer) {
    const AttentionSpec* attention = spec.layers[static_cast<std::size_t>(layer)].attention();
    if (attention == nullptr || attention->kv_source < 0) continue;
    for (int cut = attention->kv_source + 1; cut <= layer; ++cut)
      legal[static_cast<std::size_t>(cut)] = false;
  }
  return legal;
}

Result<std::vector<int>> ends_by_weights(int n_layer, std::span<const double> weights) {
  const int n = static_cast<int>(weights.size());
  if (n < 1 || n > n_layer)
    return Error::make(ErrorCode::invalid, "{} devices for {} layers: give 1 to {}", n, n_layer,
                       n_layer);
  for (const double weight : weights)
    if (!std::isfinite(weight) || weight <= 0.0)
      return Error::make(ErrorCode::invalid, "a layer weight of {}: give numbers above 0", weight);
  // Each weight counts as its share of the largest, so that no sum overflows.
  const double largest = *std::max_element(weights.begin(), weights.end());
  double total = 0.0;
  for (const double weight : weights) total += weight / largest;
  std::vector<int> ends;
  double sum = 0.0;
  int begin = 0;
  for (int i = 0; i < n; ++i) {
    sum += weights[static_cast<std::size_t>(i)] / largest;
    const int end = i + 1 == n ? n_layer : static_cast<int>(std::round(n_layer * sum / total));
    begin = std::clamp(end, begin + 1, n_layer - (n - 1 - i));
    ends.push_back(begin);
  }
  return ends;
}

std::optional<std::vector<int>> best_ends(const std::vector<bool>& legal, int n_shard,
                                          const RangeCost& cost) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const int n_layer = static_cast<int>(legal.size()) - 1;
  const auto at = [&](int shard, int end) {
    return static_cast<std::size_t>(shard * (n_layer + 1) + end);
  };
  // least[s][e]: the cost of layers [0, e) on the first s shards.
  std::vector<double> least(at(n_shard + 1, 0), kNever);
  std::vector<int> begin_of(least.size(), 0);
  least[at(0, 0)] = 0.0;
  for (int shard = 0; shard < n_shard; ++shard) {
    for (int begin = shard; begin < n_layer; ++begin) {
      if (least[at(shard, begin)] == kNever) continue;
      for (int end = begin + 1; end <= n_layer - (n_shard - 1 - shard); ++end) {
        if (!legal[static_cast<std::size_t>(end)]) continue;
        if (shard + 1 == n_shard && end != n_layer) continue;
        const std::optional<double> range = cost(shard, {begin, end});
        if (!range) continue;
        const double sum = least[at(shard, begin)] + *range;
        if (sum >= least[at(shard + 1, end)]) continue;
        least[at(shard + 1, end)] = sum;
        begin_of[at(shard + 1, end)] = begin;
      }
    }
  }
  if (least[at(n_shard, n_layer)] == kNever) return std::nullopt;
  std::vector<int> ends(static_cast<std::size_t>(n_shard));
  int end = n_layer;
  for (int shard = n_shard; shard > 0; --shard) {
    ends[static_cast<std::size_t>(shard - 1)] = end;
    end = begin_of[at(shard, end)];
  }
  return ends;
}

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// The times of all ranges of all shards: each is asked for once.
class RangeTimes {
 public:
  RangeTimes(const std::vector<bool>& legal, int n_shard, const RangeTime& time)
      : n_layer_(static_cast<int>(legal.size()) - 1) {
    times_.resize(static_cast<std::size_t>(n_shard * n_layer_ * n_layer_));
    // Through best_ends, which asks for those that can be part of a split and no others.
    (void)best_ends(legal, n_shard, [&](int shard, LayerRange layers) -> std::optional<double> {
      at(shard, layers) = time(shard, layers);
      return at(shard, layers) ? std::optional(0.0) : std::nullopt;
    });
  }

  // Summed by best_ends: what a token takes of it, where a prompt's rows take at most `limit` each.
  // With `even` a little is added, so that of equal sums that of the most even ranges is least.
  RangeCost token_cost(double limit, double even) {
    return [this, limit, even](int shard, LayerRange layers) -> std::optional<double> {
      const std::optional<StepTime>& time = at(shard, layers);
      if (!time || time->prompt_row_s > limit) return std::nullopt;
      return time->token_s + even * time->prompt_row_s * time->prompt_row_s;
    };
  }

  StepTime of(const std::vector<int>& ends) {
    StepTime sum;
    int shard = 0;
    for (const LayerRange layers : ranges_of(ends)) {
      const StepTime time = *at(shard++, layers);
      sum.prompt_row_s = std::max(sum.prompt_row_s, time.prompt_row_s);
      sum.token_s += time.token_s;
    }
    return sum;
  }

 private:
  std::optional<StepTime>& at(int shard, LayerRange layers) {
    const int row = shard * n_layer_ + layers.begin;
    return times_[static_cast<std::size_t>(row * n_layer_ + layers.end - 1)];
  }

  int n_layer_;
  std::vector<std::optional<StepTime>> times_;
};

}  // namespace

std::optional<std::vector<int>> fastest_ends(const std::vector<bool>& legal, int n_shard,
                                             const RangeTime& time, double prompt_ratio) {
  RangeTimes times(legal, n_shard, time);
  double best = kNone, best_slowest = 0.0;
  // A maximum and a sum: for each maximum worth having, from the largest, the least sum.
  for (double limit = kNone;;) {
    const auto ends = best_ends(legal, n_shard, times.token_cost(limit, 0.0));
    if (!ends) break;
    const StepTime all = times.of(*ends);
    const double cost = prompt_ratio * all.prompt_row_s + all.token_s;
    if (cost < best) {
      best = cost;
      best_slowest = all.prompt_row_s;
    }
    if (all.token_s >= best) break;         // a lower maximum makes the sum no smaller
    limit = all.prompt_row_s * (1 - 1e-9);  // below it, whatever the rounding
  }
  if (best == kNone) return std::nullopt;
  return best_ends(
      legal, n_shard,
      times.token_cost(best_slowest * (1 + 1e-9), 1e-6 / std::max(best_slowest, 1e-30)));
}

RangeCost nearest_to(std::vector<int> wanted) {
  return [wanted = std::move(wanted)](int shard, LayerRange layers) -> std::optional<double> {
    return std::abs(layers.end - wanted[static_cast<std::size_t>(shard)]);
  };
}

}  // namespace tessera
