// LayerTimes: how long one device takes for each layer of a model, measured on it
// (pipeline/measure_layers.h) and kept for later starts by whoever measures.
//
//   inventory.devices[1].times = times;                    // the planner cuts by them
//   StepTime span = span_time(times, {.begin = 3, .end = 8});
//
// Times are of an empty context with every expert on the device. Layers with the same tensors are
// measured once (layer_units). All functions are pure.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "model/model.h"

namespace tessera {

// Layers [begin, end).
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// Seconds.
struct StepTime {
  double prompt_row_s = 0.0;  // of a row of a prompt, in a full piece
  double token_s = 0.0;       // of one row alone

  StepTime& operator+=(const StepTime& other) {
    prompt_row_s += other.prompt_row_s;
    token_s += other.token_s;
    return *this;
  }
  bool operator==(const StepTime&) const = default;
};

struct LayerTimes {
  std::vector<StepTime> layers;  // one a layer of the model
  StepTime call;        // what a step costs besides its layers: the rows' way there and back
  double head_s = 0.0;  // of one row's logits; 0: not measured
  bool operator==(const LayerTimes&) const = default;
};

// That there is a time for every layer of `n_layer`, and each a number that a clock can give.
bool usable(const LayerTimes& times, int n_layer);

// A shard of these layers, with the head where the last one is among them.
StepTime span_time(const LayerTimes& times, LayerRange layers);

// Layers that no cut parts: one, or those that share their KV. Units of the same kind have the same
// tensors in the same types, so a device takes the same time for them.
struct LayerUnit {
  LayerRange layers;
  int kind = 0;  // from 0, in the order in which they come
};
std::vector<LayerUnit> layer_units(const Model& model);

}  // namespace tessera
