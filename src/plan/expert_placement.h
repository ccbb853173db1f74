// Which experts a device holds when it cannot hold all: those that make a token cheapest.
//
//   ExpertLoad load{.layers = ..., .costs = {{.call_s = 20e-6, .bytes_per_s = 20e9}}};
//   std::optional<std::vector<int>> resident = residents_within(load, budget);   // a count a layer
//
// What a layer costs a row, with n of its experts resident (the likeliest ones), is
//
//   P(some chosen expert is away) * call_s + E(chosen experts away) * bytes / bytes_per_s
//
// with the call and the speed of whoever takes least for it, the host or a worker: while the model
// runs a job goes to the cheaper one (experts/bypass.h). The sum over the layers is made as small
// as the budget allows (a Lagrangian over the lower convex hull of each layer, then what is left of
// the budget by single steps). The chance of a call falls only with the last few experts, so layers
// become resident whole where calls are dear, and evenly where bytes are. Of layers that gain about
// as much, within a tenth, those become whole that are in turns with the others, which a device
// foresees meanwhile. An expert's chance comes from a routing profile, or is the same for all. All
// functions are pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/expert_home.h"

namespace tessera {

// Of one who computes experts away: the host, or a worker. What nobody measured is assumed, and
// marked so.
struct ExpertCosts {
  double call_s = 20e-6;      // a job, without its bytes
  double bytes_per_s = 10e9;  // at which experts away are read
  bool call_measured = false;
  bool speed_measured = false;
};

struct ExpertLayerLoad {
  std::vector<double> chance;  // of each expert that a row chooses it; they sum to the experts used
  std::int64_t expert_bytes = 0;  // of one
  std::int64_t locked_bytes = 0;  // that one takes of the same memory while it is away, at least
  int floor = 0;                  // residents at least
  std::vector<int> order = {};    // by_chance(chance), where that is known already
  std::int64_t device_bytes = 0;  // of one on the layer's device, where that has another form
};

// What an expert takes of the memory of its layer's device.
inline std::int64_t held_bytes(const ExpertLayerLoad& layer) {
  return layer.device_bytes > 0 ? layer.device_bytes : layer.expert_bytes;
}

// And how much more when it is resident than when it is away.
inline std::int64_t resident_bytes(const ExpertLayerLoad& layer) {
  return std::max<std::int64_t>(0, held_bytes(layer) - layer.locked_bytes);
}

struct ExpertLoad {
  std::vector<ExpertLayerLoad> layers;
  std::vector<ExpertCosts> costs = {{}};  // of all who can
};

// Room for experts that come while the model serves, in layers that have experts away: places a
// layer, or the bytes of one device, which all its layers with experts share as evenly as they go.
struct ExpertSpare {
  int places = 0;
  std::int64_t bytes = 0;  // if not 0, instead of places
};

// Places of each layer, at most as many as it has experts. They depend on no layer's residents, so
// that room which is kept for them suffices wherever the residents are.
std::vector<int> spare_places(const ExpertLoad& load, const ExpertSpare& spare);

// The experts of a layer from the likeliest to the least likely; equals in the order of their
// numbers.
std::vector<int> by_chance(std::span<const double> chance);

// Seconds that a row waits for the layer's experts away, with the first `resident` of by_chance().
double layer_cost(const ExpertLayerLoad& layer, std::span<const ExpertCosts> costs, int resident);

// How many experts of each layer are resident; nothing where the floors are over the budget.
std::optional<std::vector<int>> residents_within(const ExpertLoad& load, std::int64_t budget);

// A share of every layer's experts, in percent, rounded to the nearest count.
std::vector<int> residents_by_percent(const ExpertLoad& load, double percent);

// Chances of the pairs away, over all layers: the share of a row's pairs that are not resident.
double cold_share(const ExpertLoad& load, std::span<const int> residents);

// The chance that a row chooses an expert of this home, and how many of them it does, expected.
struct HomeUse {
  double any = 0.0;
  double pairs = 0.0;
};
HomeUse use_of(const ExpertLayerLoad& layer, std::span<const ExpertHome> homes, ExpertHome home);

// A process that takes experts of other devices' layers.
struct ExpertWorker {
  std::int64_t budget = 0;  // bytes of experts
  double speed = 1.0;       // relative to the others
};

// The homes of a layer's experts: `resident` of them with the device, the likeliest of the others
// at the workers, in turn by their speed, as long as these have room, the rest with the host.
// `room` is what the workers have left, in bytes, and is lowered.
std::vector<ExpertHome> homes_of(const ExpertLayerLoad& layer, int resident,
                                 std::span<const ExpertWorker> workers,
                                 std::vector<std::int64_t>& room);

}  // namespace tessera
