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

  // Copies the expert to its place, from which the evicted one is gone: as `bring` does it, where
  // there is none from the model's file. No kernel may be using the layer. Kernels on `queue`
  // behind this, and behind those below, see the layer as it then is.
  using Bring = std::function<Status(std::byte* to)>;
  Status replace_expert(const Model& model, const LoadOptions& options, const ExpertMove& move,
                        const Bring& bring, GpuStream queue);
  // From now on kernels find it there.
  Status publish_expert(const ExpertMove& move, GpuStream queue);
  // Where kernels may read a layer's experts in pinned memory from now on, [n_expert].
  Status link_experts(int layer, std::span<const std::byte* const> places, GpuStream queue);

  const LayerWeights& layer(int index) const {
    return layers_[static_cast<std::size_t>(index - first_layer_)];
  }
  const LayerWeights& global() const { return global_; }
  std::byte* arena() const { return arena_.data(); }

 private:
  Status read_expert(const Model& model, const LoadOptions& options, const ExpertMove& move,
                     std::int64_t place);
  Status set_table_entry(const ExpertArena& arena, int expert, const std::byte* to,
                         GpuStream queue);
  Status set_entries(std::int64_t offset, std::span<const std::byte* const> entries,
                     GpuStream queue);
  void place(const WeightEntry& entry);

  DeviceBuffer arena_;
  Event written_;  // set_entries()
  int first_layer_ = 0;
  std::vector<ExpertArena> experts_;  // by layer of the shard
  std::vector<WeightEntry> expert_entries_;
  std::vector<LayerWeights> layers_;
  LayerWeights global_;
};

}  // namespace tessera::gpu
