// GpuWeights: the weights of a shard in device memory, as the kernels' descriptors.
//
//   TESSERA_ASSIGN(GpuWeights weights, GpuWeights::load(model, shard, layout, options, progress));
//   project(launch, {..., .outputs = {{.w = weights.layer(3).matrix(TensorRole::attn_q), ...}}});
//
// load() repacks with several host threads, each into pinned buffers of its own that are copied
// while the next one is filled. Descriptors point into the arena and live as long as it.
#pragma once

#include <array>
#include <memory>
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

class Uploader;

class GpuWeights {
 public:
  static Result<GpuWeights> load(const Model& model, const ShardLayout& shard,
                                 const WeightLayout& layout, const LoadOptions& options,
                                 const LoadProgress& progress);

  // --- An expert that comes, and may take the place of one that leaves ---
  // Kernels that are on `queue` behind vacate() or publish() see the layer as it then is; neither
  // waits for those ahead of it.

  // Memory for what read_expert() packs, before the first step: to free any beside steps would wait
  // for them.
  Status prepare_moves(const LoadOptions& options);
  // No kernel finds the evicted one any more. The place, for what brings the other one there.
  Result<std::byte*> vacate(const ExpertMove& move, GpuStream queue);
  // Brings it from the model's file, behind `free`, and waits until it is there. By any thread, one
  // at a time.
  Status read_expert(const Model& model, const LoadOptions& options, const ExpertMove& move,
                     const std::byte* place, const Event& free) const;
  // Kernels find it there.
  Status publish(const ExpertMove& move, const std::byte* place, GpuStream queue);

  // Where kernels may read a layer's experts in pinned memory from now on, [n_expert].
  Status link_experts(int layer, std::span<const std::byte* const> places, const LoadQueue& queue);

  const LayerWeights& layer(int index) const {
    return layers_[static_cast<std::size_t>(index - first_layer_)];
  }
  const LayerWeights& global() const { return global_; }
  // The embedding table's rows behind those of global()'s, where it is in two parts.
  const Matrix& table_rest() const { return table_rest_; }
  std::byte* arena() const { return arena_.data(); }

 private:
  void place(const WeightEntry& entry);

  DeviceBuffer arena_;
  PinnedBuffer host_;                // what kernels read over the link
  PinnedBuffer entry_;               // of a table, on its way there
  Event written_;                    // it has come
  std::shared_ptr<Uploader> mover_;  // read_expert()'s
  int first_layer_ = 0;
  std::vector<ExpertArena> experts_;  // by layer of the shard
  std::vector<WeightEntry> expert_entries_;
  std::vector<LayerWeights> layers_;
  LayerWeights global_;
  Matrix table_rest_;
};

}  // namespace tessera::gpu
