// What the layers of a model take on a device, measured through the interface of shards, so that
// devices of this process and workers are measured alike.
//
//   TESSERA_ASSIGN(const MeasuredLayers measured,
//                  measure_layers(model, {.piece_rows = 128, .fits = fits}, open_shard));
//
// For each kind of layer (layer_units) a shard of one unit is loaded, computes pieces of made-up
// rows and single rows in turn, and is dropped; then one of several units, which tells what a step
// costs besides its layers. A single row comes after a full piece, which has read every expert, so
// that its weights are not still in a cache. The least of several times counts (LeastTimes). The
// context is empty but for the piece.
//
// Errors: exhausted where not even a unit fits; else what opening, loading or running a shard says.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "pipeline/shard.h"
#include "plan/layer_times.h"

namespace tessera {

struct MeasureOptions {
  int piece_rows = 128;  // piece_rows(): those of the plan that is to come
  KvType kv_type = KvType::f16;
  bool f32_weights = false;
  bool head = false;      // the device is to have the head: it is measured as well
  std::vector<int> cpus;  // of the device's team: the first is this thread's meanwhile
  std::function<bool(const ShardLayout&)> fits;  // whether the device has the memory
};

// A shard of the device that is measured; load() is called once on each.
using ShardMaker = std::function<Result<std::unique_ptr<Shard>>(const ShardLayout&)>;

struct MeasuredLayers {
  LayerTimes times;
  double spread = 0.0;  // LeastTimes::spread(), the widest
};
// Beyond that other work on the machine may have decided what was measured.
inline constexpr double kMostSpread = 0.1;

Result<MeasuredLayers> measure_layers(const Model& model, const MeasureOptions& options,
                                      const ShardMaker& open);

}  // namespace tessera
