// GpuWeights: the weights of a shard in device memory, as the kernels' descriptors.
//
//   TESSERA_ASSIGN(GpuWeights weights, GpuWeights::load(model, shard, layout, options, progress));
//   project(launch, {..., .outputs = {{.w = weights.layer(3).matrix(TensorRole::attn_q), ...}}});
//
// load() repacks with several host threads, each into pinned buffers of its own that are copied
// while the next one is filled. Descriptors point into the arena and live as long as it.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "device/gpu/gpu_layout.h"
#include "device/gpu/plugin/driver.h"
#include "device/gpu/plugin_api.h"

namespace tessera::gpu {

// The tensors of one layer (or the global ones). Roles that the layer lacks are null.
struct LayerWeights {
  std::array<Matrix, kRoles> matrices{};
  std::array<const float*, kRoles> vectors{};
  ExpertShape experts;
  const std::byte* const* expert_table = nullptr;
  const std::byte* const* linked = nullptr;  // MoeArgs::linked
  std::byte* brought = nullptr;              // MoeArgs::brought

  const Matrix& matrix(TensorRole role) const { return matrices[static_cast<std::size_t>(role)]; }
  const float* vector(TensorRole role) const { return vectors[static_cast<std::size_t>(role)]; }
};

// A piece of weights, some 4 MB, that has not come in so many seconds never will.
inline constexpr double kLongestPiece = 60;
struct LoadOptions {
  int device = 0;
  int threads = 1;
  double wait_seconds = kLongestPiece;  // the longest wait for one piece
  const GpuHost& host;
};

class GpuWeights {
 public:
  static Result<GpuWeights> load(const Model& model, const ShardLayout& shard,
                                 const WeightLayout& layout, const LoadOptions& options,
                                 const LoadProgress& progress);

  // --- An expert that comes, and may take the place of one that leaves. Kernels that are on
  // `queue` behind one of these see the layer as it then is; nothing here waits for those ahead of
  // it. No kernel finds the evicted one any more. The place, for what brings the other one there.
  Result<std::byte*> vacate(const ExpertMove& move, GpuStream queue);
  // Brings it from the model's file, by one thread, and waits until it is there.
  Status read_expert(const Model& model, const LoadOptions& options, const ExpertMove& move,
                     const std::byte* place) const;
  // Kernels find it there, and where `linked` is not null the evicted one in pinned memory.
  Status publish(const ExpertMove& move, const std::byte* place, const std::byte* linked,
                 GpuStream queue);
  // No kernel reads that one in pinned memory any more.
  Status unlink(int layer, int expert, GpuStream queue);
  // Where kernels may read a layer's experts in pinned memory from now on, [n_expert].
  Status link_experts(int layer, std::span<const std::byte* const> places, GpuStream queue);

  const LayerWeights& layer(int index) const {
    return layers_[static_cast<std::size_t>(index - first_layer_)];
  }
  const LayerWeights& global() const { return global_; }
  std::byte* arena() const { return arena_.data(); }

 private:
  ExpertArena& experts_of(int layer) {
    return experts_[static_cast<std::size_t>(layer - first_layer_)];
  }
  Status clear_entry(std::int64_t table, int expert, GpuStream queue);
  void place(const WeightEntry& entry);

  DeviceBuffer arena_;
  PinnedBuffer entries_;  // of tables, on their way there
  Event written_;         // they have come
  int first_layer_ = 0;
  std::vector<ExpertArena> experts_;  // by layer of the shard
  std::vector<WeightEntry> expert_entries_;
  std::vector<LayerWeights> layers_;
  LayerWeights global_;
};

}  // namespace tessera::gpu
