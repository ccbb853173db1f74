// Pipeline: the one way to run a model. One device is a pipeline of one shard.
//
//   TESSERA_ASSIGN(Pipeline pipeline, Pipeline::load(model, plan, std::move(devices), progress));
//   TESSERA_TRY(pipeline.forward(batch));                // all layers of all shards
//   std::span<const float> logits = pipeline.logits();   // [logit rows][n_vocab]
//
// One thread (the engine's) drives it. logits() is valid until the next forward(). forward() fails
// only when a device is lost; the batch must keep to the plan's limits (CHECKed by the device).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/batch.h"
#include "device/device.h"
#include "plan/plan.h"
#include "state/sequence_pool.h"

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

class Pipeline final : public ForwardPass {
 public:
  // One device per shard of the plan, in its order. The model's file is not read afterwards.
  static Result<std::unique_ptr<Pipeline>> load(const Model& model, const Plan& plan,
                                                std::vector<std::unique_ptr<Device>> devices,
                                                const LoadProgress& progress);

  const ModelSpec& spec() const override { return spec_; }
  Status forward(const BatchView& batch) override;
  std::span<const float> logits() override { return shards_.back().device->logits(); }
  void reset_slot(int slot) override;

 private:
  struct Shard {
    std::unique_ptr<Device> device;
    int first_layer = 0;
    int end_layer = 0;
  };

  ModelSpec spec_;
  std::vector<Shard> shards_;
  std::vector<float> boundary_;  // residual rows on their way to the next shard
};

// The pool that hands out the plan's pages and slots.
SequencePoolLayout sequence_pool_layout(const Plan& plan);

// The devices of a plan, ready to load.
struct DeviceOptions {
  std::string cpu_isa;  // empty: the widest this processor has
  bool chunked_delta = false;
};
Result<std::vector<std::unique_ptr<Device>>> open_devices(const Plan& plan,
                                                          const DeviceOptions& options);

}  // namespace tessera
