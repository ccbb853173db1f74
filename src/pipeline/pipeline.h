// Pipeline: the one way to run a model. One device is a pipeline of one shard.
//
//   TESSERA_ASSIGN(auto pipeline, Pipeline::load(model, plan, devices, progress));
//   pipeline->forward(batch);                       // all layers of all shards
//   std::span<const float> logits = pipeline->logits();   // [logit rows][n_vocab]
//
// One thread (the engine's) drives it. logits() is valid until the next forward().
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/batch.h"
#include "device/device.h"

namespace tessera {

// What the engine needs of a pipeline; tests put a scripted one in its place.
class ForwardPass {
 public:
  virtual ~ForwardPass() = default;
  virtual const ModelSpec& spec() const = 0;
  virtual Status forward(const BatchView& batch) = 0;
  virtual std::span<const float> logits() = 0;
  virtual void reset_slot(int slot) = 0;
};

}  // namespace tessera
