// pack_experts: whole experts in the device's form in host memory, by several threads.
#pragma once

#include <span>

#include "device/gpu/plugin/gpu_weights.h"

namespace tessera::gpu {

// Experts of a layer of the shard, for where each after the other goes.
struct PackedExperts {
  int layer = 0;
  std::span<const std::int32_t> experts;
  std::byte* to = nullptr;
};

// ErrorCode::io where the model's file changed, `cancelled` where `progress` says so, `exhausted`
// where the system starts no more threads.
Status pack_experts(const Model& model, const ShardLayout& shard, const WeightLayout& layout,
                    std::span<const PackedExperts> packed, const LoadOptions& options,
                    const LoadProgress& progress);

}  // namespace tessera::gpu
