// Weights: the packed weights of a shard, by layer and role.
//
// load() repacks the file's tensors into one arena with every thread of the team, giving the file's
// pages back as it goes, so that memory peaks at the arena plus a few megabytes. Immutable
// afterwards.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/thread_team.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/weight_layout.h"

namespace tessera::cpu {

inline constexpr std::size_t kRoles = static_cast<std::size_t>(TensorRole::count);

// The tensors of one layer (or the global ones). Roles that the layer lacks are empty or null.
struct LayerWeights {
  std::array<PackedMatrix, kRoles> matrices;         // the first matrix of the role
  std::array<std::int64_t, kRoles> matrix_stride{};  // bytes from one expert to the next
  std::array<const float*, kRoles> vectors{};
  bool reads_records = false;  // some matrix multiplies the normed rows in their quantised form

  const PackedMatrix& matrix(TensorRole role) const {
    return matrices[static_cast<std::size_t>(role)];
  }
  PackedMatrix expert(TensorRole role, int expert) const;
  const float* vector(TensorRole role) const { return vectors[static_cast<std::size_t>(role)]; }
};

class Weights {
 public:
  static Result<Weights> load(const Model& model, const ShardLayout& shard, ThreadTeam& team,
                              const LoadProgress& progress);

  const LayerWeights& layer(int index) const {
    return layers_[static_cast<std::size_t>(index - first_layer_)];
  }
  const LayerWeights& global() const { return global_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(arena_.size()); }

 private:
  void place(const WeightEntry& entry);

  AlignedBuffer arena_;
  int first_layer_ = 0;
  std::vector<LayerWeights> layers_;
  LayerWeights global_;
};

}  // namespace tessera::cpu
