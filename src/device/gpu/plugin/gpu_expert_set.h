// GpuExpertSet: the experts of GpuExperts on one GPU. A job is one trip: rows and routing up, the
// kernels, sums back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/gpu/gpu_experts.h"
#include "device/gpu/plugin/gpu_weights.h"
#include "device/gpu/plugin_api.h"

namespace tessera::gpu {

class GpuExpertSet final : public GpuExperts {
 public:
  GpuExpertSet(std::string name, const GpuDeviceOptions& options, const GpuHost& host,
               const GpuTraits& traits)
      : name_(std::move(name)), options_(options), host_(host), traits_(traits) {}
  ~GpuExpertSet() override;

  Status load(const Model& model, const ShardLayout& layout) override;
  Status compute(const GpuExpertsJob& job, std::span<float> sums) override;

 private:
  std::optional<LeftBehind> left_behind_;  // first, so that it goes last

  Status load_all(const Model& model);
  Status run(const GpuExpertsJob& job, std::span<float> sums);
  void fill_routing(const GpuExpertsJob& job);
  FfnArgs args(const GpuExpertsJob& job) const;

  const std::string name_;
  const GpuDeviceOptions options_;
  const GpuHost host_;
  const GpuTraits traits_;
  ModelSpec spec_;
  ShardLayout layout_;
  Stream stream_;
  Event finished_;
  std::vector<TensorSlice> tensors_;  // the experts', of weights_
  GpuWeights weights_;
  ExpertsScratch scratch_;
  DeviceBuffer memory_;
  PinnedBuffer pinned_;               // rows, which sums take the place of; then ids and weights
  std::vector<std::int32_t> filler_;  // by layer of the shard: the expert of a slot without a pair
  Status fault_;
};

}  // namespace tessera::gpu
