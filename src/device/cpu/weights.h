// Weights: the packed weights of a shard, by layer and role.
//
// load() repacks the file's tensors into one arena with every thread of the team, giving the file's
// pages back as it goes, so that memory peaks at the arena plus a few megabytes. Immutable
// afterwards, but for the experts that an ExpertMover exchanges.
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

// A matrix in the arena, or one that stays in the file and has a shape only (file_matrix.h).
struct WeightMatrix : PackedMatrix {
  const TensorSlice* file = nullptr;
};

// The tensors of one layer (or the global ones). Roles that the layer lacks are empty or null.
struct LayerWeights {
  std::array<WeightMatrix, kRoles> matrices;         // the first matrix of the role
  std::array<std::int64_t, kRoles> matrix_stride{};  // bytes from one expert to the next
  std::array<const float*, kRoles> vectors{};
  bool reads_records = false;  // some matrix multiplies the normed rows in their quantised form
  // Where each expert lies among the layer's, -1: not here. Empty: expert e is the e-th.
  std::vector<std::int32_t> expert_place;
  std::vector<std::int32_t> place_expert;  // and which expert lies in each place, -1: none

  const WeightMatrix& matrix(TensorRole role) const {
    return matrices[static_cast<std::size_t>(role)];
  }
  bool holds(int expert) const {
    return expert_place.empty() || expert_place[static_cast<std::size_t>(expert)] >= 0;
  }
  PackedMatrix expert(TensorRole role, int expert) const;  // one that it holds
  const float* vector(TensorRole role) const { return vectors[static_cast<std::size_t>(role)]; }
};

// Row groups of one matrix of a tensor.
struct PackRange {
  std::int64_t matrix = 0;
  GroupRange groups;
};
// Their rows as the file has them.
MatrixSource file_rows(const TensorSlice& slice, const PackRange& range);
// Packs them as blocks of `type`, the tensor's own or F32. `destination` is where the first of them
// goes, 64-byte aligned; `rows` is room that is kept between calls.
void pack_range(const TensorSlice& slice, BlockType type, const PackRange& range,
                std::byte* destination, std::vector<float>& rows);

class Weights {
 public:
  static Result<Weights> load(const Model& model, const ShardLayout& shard, ThreadTeam& team,
                              const LoadProgress& progress);
  // Some of the model's tensors only; the span must outlive the weights.
  static Result<Weights> load(const Model& model, std::span<const TensorSlice> tensors,
                              const ShardLayout& shard, ThreadTeam& team,
                              const LoadProgress& progress);

  const LayerWeights& layer(int index) const {
    return layers_[static_cast<std::size_t>(index - first_layer_)];
  }
  const LayerWeights& global() const { return global_; }
  // For an ExpertMover: makes a place free for the expert, and lets it be used. In between
  // pack_expert() fills it, beside steps; `rows` is room of so many floats.
  std::size_t expert_rows_room() const;
  std::int32_t vacate(const ExpertMove& move);
  void pack_expert(const ExpertMove& move, std::int32_t place, std::vector<float>& rows);
  void admit(const ExpertMove& move, std::int32_t place);
  std::int64_t bytes() const { return static_cast<std::int64_t>(arena_.size()); }

 private:
  void place(const WeightEntry& entry, const ShardLayout& shard);

  AlignedBuffer arena_;
  int first_layer_ = 0;
  std::vector<WeightEntry> expert_entries_;  // of layers whose experts come and go
  std::vector<LayerWeights> layers_;
  LayerWeights global_;
};

}  // namespace tessera::cpu
