#include "plan/layer_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "plan/layer_cuts.h"

namespace tessera {
namespace {

// More is no measurement but a defect, or a file that someone made up.
constexpr double kLongest = 3600.0;

bool plausible(double seconds) {
  return std::isfinite(seconds) && seconds >= 0.0 && seconds <= kLongest;
}

// What decides how long a layer takes.
using Signature = std::vector<std::array<std::int64_t, 6>>;

Signature signature_of(const Model& model, LayerRange layers) {
  Signature signature;
  for (const TensorSlice& slice : model.tensors())
    if (slice.layer >= layers.begin && slice.layer < layers.end)
      signature.push_back({slice.layer - layers.begin, static_cast<std::int64_t>(slice.role),
                           static_cast<std::int64_t>(slice.type), slice.matrices, slice.rows,
                           slice.cols});
  for (int l = layers.begin; l < layers.end; ++l) {
    const LayerSpec& spec = model.spec().layers[static_cast<std::size_t>(l)];
    signature.push_back({l - layers.begin, -1, spec.moe ? spec.moe->n_used : 0,
                         spec.attention() != nullptr ? spec.attention()->window : 0, 0, 0});
  }
  std::sort(signature.begin(), signature.end());
  return signature;
}

}  // namespace

bool usable(const LayerTimes& times, int n_layer) {
  const auto right = [](const StepTime& time) {
    return plausible(time.prompt_row_s) && plausible(time.token_s);
  };
  return times.layers.size() == static_cast<std::size_t>(n_layer) && right(times.call) &&
         plausible(times.head_s) &&
         std::all_of(times.layers.begin(), times.layers.end(), [&](const StepTime& time) {
           return right(time) && time.prompt_row_s > 0.0 && time.token_s > 0.0;
         });
}

StepTime span_time(const LayerTimes& times, LayerRange layers) {
  StepTime sum = times.call;
  for (int l = layers.begin; l < layers.end; ++l) sum += times.layers[static_cast<std::size_t>(l)];
  if (std::cmp_equal(layers.end, times.layers.size())) sum.token_s += times.head_s;
  return sum;
}

std::vector<LayerUnit> layer_units(const Model& model) {
  const std::vector<bool> legal = legal_cuts(model.spec());
  std::map<Signature, int> kinds;
  std::vector<LayerUnit> units;
  for (int begin = 0; begin < model.spec().n_layer();) {
    LayerRange layers{begin, begin + 1};
    while (!legal[static_cast<std::size_t>(layers.end)]) ++layers.end;
    const int next = static_cast<int>(kinds.size());
    const auto kind = kinds.emplace(signature_of(model, layers), next).first;
    units.push_back({.layers = layers, .kind = kind->second});
    begin = layers.end;
  }
  return units;
}

}  // namespace tessera
