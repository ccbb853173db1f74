// ExpertsHandler: a worker's end of role experts. It holds the experts that HELLO names and runs
// COMPUTE_EXPERTS jobs on them (experts/expert_set.h), in any order of layers.
//
//   ExpertsHandler handler(model, {.device = device, .budget = bytes});
//   serve(channel, offer, handler, stats);
//
// What a client asks for is held against the budget before it is loaded; one that asks for what
// the one before had gets it without loading again. There is no state of sequences here.
//
// Trust: a job's rows, pairs and experts are checked before it runs (jobs.h, ExpertSet::check).
#pragma once

#include <memory>
#include <vector>

#include "experts/expert_holder.h"
#include "model/model.h"
#include "pipeline/shard.h"
#include "plan/plan.h"
#include "worker/jobs.h"
#include "worker/serve.h"
#include "worker/weight_source.h"

namespace tessera::worker {

struct ExpertsHandlerOptions {
  ShardPlan device;         // its kind, number, threads and cores
  std::int64_t budget = 0;  // bytes, of the device's memory
  cpu::Isa isa = cpu::detect_isa();
  DeviceOptions opening = {};      // of a GPU
  WeightSource* source = nullptr;  // of the weights; null: the model's file
};

// What serving such a client takes of the worker's memory besides the experts and what computes
// them, and so of its place in the plan: the jobs that are counted, each as it came and the one
// that is computed in numbers, and its sums where they are narrowed. Pure.
std::int64_t experts_serving_bytes(const Hello& hello, const HelloAck& ack);

class ExpertsHandler final : public JobHandler {
 public:
  // `model` must outlive it.
  ExpertsHandler(const Model& model, const ExpertsHandlerOptions& options)
      : model_(model), options_(options) {}

  Result<Prepared> prepare(const Hello& hello, const HelloAck& ack) override;
  Result<JobOutput> run(const FrameHeader& header, std::span<const std::byte> body,
                        const WireLimits& limits, const Near&) override;

  void release();  // its memory; prepare() loads again
  // A GPU that failed stays so while the process lives.
  bool lost() const override { return lost_; }

 private:
  Result<ExpertSetLayout> layout_of(const Hello& hello, const HelloAck& ack) const;
  Status load(const ExpertSetLayout& layout, std::int64_t bytes);
  bool on_gpu() const { return options_.device.kind != DeviceKind::cpu; }

  const Model& model_;
  ExpertsHandlerOptions options_;
  std::unique_ptr<ExpertHolder> set_;
  bool lost_ = false;

  ExpertsBody wire_;
  std::vector<RoutedPair> pairs_;
  std::vector<float> rows_;
  std::vector<double> sums_;
  std::vector<std::byte> result_;
};

}  // namespace tessera::worker
