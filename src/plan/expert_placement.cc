#include "plan/expert_placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/checked.h"

namespace tessera {
namespace {

std::vector<int> order_of(const ExpertLayerLoad& layer) {
  return layer.order.empty() ? by_chance(layer.chance) : layer.order;
}

// The cost of a layer by its number of residents.
std::vector<double> costs_by_count(const ExpertLayerLoad& layer,
                                   std::span<const ExpertCosts> costs) {
  const std::vector<int> order = order_of(layer);
  std::vector<double> result(order.size() + 1, 0.0);
  double none_away = 1.0;  // that no chosen expert is away
  double away = 0.0;
  for (std::size_t n = order.size(); n-- > 0;) {
    const double chance = std::clamp(layer.chance[static_cast<std::size_t>(order[n])], 0.0, 1.0);
    none_away *= 1.0 - chance;
    away += chance;
    const double bytes = away * static_cast<double>(layer.expert_bytes);
    result[n] = std::numeric_limits<double>::infinity();
    for (const ExpertCosts& one : costs)
      result[n] = std::min(result[n], (1.0 - none_away) * one.call_s + bytes / one.bytes_per_s);
  }
  return result;
}

// A step along a layer's hull.
struct Step {
  std::size_t layer;
  int to;  // residents after it
  std::int64_t bytes;
  double gain_per_byte;
  bool whole;  // from the layer's floor to all of its experts
};

// The lower convex hull of (count, cost) from the floor on: its steps gain less and less a byte.
void add_hull_steps(std::size_t layer, const ExpertLayerLoad& load, std::span<const double> cost,
                    std::vector<Step>& steps) {
  std::vector<int> hull;
  for (int n = load.floor; n < static_cast<int>(cost.size()); ++n) {
    const auto at = [&](int count) { return cost[static_cast<std::size_t>(count)]; };
    while (hull.size() >= 2) {
      const int b = hull.back(), a = hull[hull.size() - 2];
      if ((at(b) - at(a)) * (n - a) < (at(n) - at(a)) * (b - a)) break;
      hull.pop_back();
    }
    hull.push_back(n);
  }
  double gain_before = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i < hull.size(); ++i) {
    const int from = hull[i - 1], to = hull[i];
    const std::int64_t bytes = saturated_mul<std::int64_t>(resident_bytes(load), to - from);
    const double gain = cost[static_cast<std::size_t>(from)] - cost[static_cast<std::size_t>(to)];
    // On a straight line rounding would make a later step gain more, and sort it first.
    gain_before =
        std::min(gain_before, gain / static_cast<double>(std::max<std::int64_t>(bytes, 1)));
    steps.push_back({layer, to, bytes, gain_before, hull.size() == 2});
  }
}

// Of n layers k that become whole, so that those which ask for experts elsewhere do it in turns
// with them: the experts of the next one are foreseen, and read ahead, for as long as a whole layer
// takes. One between two others is enough; what is left stands together in front, where a device
// may run it as one.
std::vector<bool> in_turns(std::size_t n, std::size_t k) {
  std::vector<bool> whole(n, false);
  const std::size_t others = n - k, between = std::min(k, others > 0 ? others - 1 : 0);
  const std::size_t front = k - between;
  std::fill_n(whole.begin(), front, true);
  for (std::size_t i = 0; i < between; ++i)
    whole[front + i + ((i + 1) * others + between) / (between + 1)] = true;
  return whole;
}

// Steps that make a layer whole at once, by layers: those first that are in turns with the others,
// as many as the budget has room for.
void put_in_turns(std::vector<Step>& steps, std::int64_t budget) {
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.layer < b.layer; });
  std::vector<bool> first(steps.size(), false);
  for (std::size_t k = steps.size(); k > 0; --k) {
    std::vector<bool> whole = in_turns(steps.size(), k);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (whole[i]) bytes = saturated_add(bytes, steps[i].bytes);
    if (bytes > budget) continue;
    first = std::move(whole);
    break;
  }
  std::vector<Step> ordered;
  for (const bool now : {true, false})
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (first[i] == now) ordered.push_back(steps[i]);
  steps = std::move(ordered);
}

// Steps that gain most a byte first. Of those that gain about as much the ones that make a layer
// whole go in turns with the layers that do not become so.
void put_in_order(std::vector<Step>& steps, std::int64_t budget) {
  constexpr double kAbout = 0.9;
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.gain_per_byte > b.gain_per_byte; });
  for (std::size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
    const double least = kAbout * steps[begin].gain_per_byte;
    std::vector<Step> whole;
    do {
      if (steps[end].whole) whole.push_back(steps[end]);
      ++end;
    } while (end < steps.size() && steps[end].gain_per_byte >= least);
    put_in_turns(whole, budget);
    auto next = whole.begin();
    for (std::size_t i = begin; i < end; ++i) {
      if (steps[i].whole) steps[i] = *next++;
      budget = saturated_rest(budget, {steps[i].bytes});
    }
  }
}

}  // namespace

std::vector<int> spare_places(const ExpertLoad& load, const ExpertSpare& spare) {
  std::vector<int> places;
  for (const ExpertLayerLoad& layer : load.layers)
    places.push_back(
        spare.bytes > 0 ? 0 : std::min(spare.places, static_cast<int>(layer.chance.size())));
  std::int64_t left = spare.bytes;
  for (bool more = left > 0; more;) {
    more = false;
    for (std::size_t l = 0; l < places.size(); ++l) {
      const ExpertLayerLoad& layer = load.layers[l];
      if (places[l] == static_cast<int>(layer.chance.size()) || held_bytes(layer) > left) continue;
      left -= held_bytes(layer);
      ++places[l];
      more = true;
    }
  }
  return places;
}

std::vector<int> by_chance(std::span<const double> chance) {
  std::vector<int> order(chance.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return chance[static_cast<std::size_t>(a)] > chance[static_cast<std::size_t>(b)];
  });
  return order;
}

double layer_cost(const ExpertLayerLoad& layer, std::span<const ExpertCosts> costs, int resident) {
  return costs_by_count(layer, costs)[static_cast<std::size_t>(resident)];
}

std::optional<std::vector<int>> residents_within(const ExpertLoad& load, std::int64_t budget) {
  std::vector<int> residents;
  std::vector<Step> steps;
  for (std::size_t l = 0; l < load.layers.size(); ++l) {
    const ExpertLayerLoad& layer = load.layers[l];
    residents.push_back(layer.floor);
    budget =
        saturated_rest(budget, {saturated_mul<std::int64_t>(layer.floor, resident_bytes(layer))});
    if (budget < 0) return std::nullopt;
    add_hull_steps(l, layer, costs_by_count(layer, load.costs), steps);
  }
  put_in_order(steps, budget);
  // A layer's steps come in order, so one that was passed over closes its layer.
  std::vector<bool> open(load.layers.size(), true);
  for (const Step& step : steps) {
    if (!open[step.layer]) continue;
    if (step.bytes <= budget) {
      residents[step.layer] = step.to;
      budget -= step.bytes;
      continue;
    }
    // Only a part of it fits: the layer takes what there is.
    open[step.layer] = false;
    const std::int64_t each = std::max<std::int64_t>(resident_bytes(load.layers[step.layer]), 1);
    const int more =
        static_cast<int>(std::min<std::int64_t>(budget / each, step.to - residents[step.layer]));
    residents[step.layer] += more;
    budget -= more * each;
  }
  return residents;
}

std::vector<int> residents_by_percent(const ExpertLoad& load, double percent) {
  std::vector<int> residents;
  for (const ExpertLayerLoad& layer : load.layers)
    residents.push_back(
        static_cast<int>(std::lround(percent / 100.0 * static_cast<double>(layer.chance.size()))));
  return residents;
}

double cold_share(const ExpertLoad& load, std::span<const int> residents) {
  double away = 0.0, all = 0.0;
  for (std::size_t l = 0; l < load.layers.size(); ++l) {
    const std::vector<int> order = order_of(load.layers[l]);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const double chance = load.layers[l].chance[static_cast<std::size_t>(order[i])];
      all += chance;
      if (static_cast<int>(i) >= residents[l]) away += chance;
    }
  }
  return all > 0.0 ? away / all : 0.0;
}

HomeUse use_of(const ExpertLayerLoad& layer, std::span<const ExpertHome> homes, ExpertHome home) {
  HomeUse use;
  double none = 1.0;
  for (std::size_t e = 0; e < homes.size(); ++e) {
    if (homes[e] != home) continue;
    const double chance = std::clamp(layer.chance[e], 0.0, 1.0);
    none *= 1.0 - chance;
    use.pairs += chance;
  }
  use.any = 1.0 - none;
  return use;
}

std::vector<ExpertHome> homes_of(const ExpertLayerLoad& layer, int resident,
                                 std::span<const ExpertWorker> workers,
                                 std::vector<std::int64_t>& room) {
  std::vector<ExpertHome> homes(layer.chance.size(), ExpertHome::host());
  const std::vector<int> order = order_of(layer);
  std::vector<double> given(workers.size(), 0.0);  // chances of this layer, over the speed
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto expert = static_cast<std::size_t>(order[i]);
    if (static_cast<int>(i) < resident) {
      homes[expert] = ExpertHome::resident();
      continue;
    }
    std::optional<std::size_t> best;
    for (std::size_t w = 0; w < workers.size(); ++w)
      if (room[w] >= layer.expert_bytes && (!best || given[w] < given[*best])) best = w;
    if (!best) continue;
    homes[expert] = ExpertHome::worker(static_cast<int>(*best));
    room[*best] -= layer.expert_bytes;
    // Also an expert that is never chosen counts a little, so that these too are shared out.
    given[*best] += (layer.chance[expert] + 1e-9) / workers[*best].speed;
  }
  return homes;
}

}  // namespace tessera
