// WeightLayout: where each tensor of a shard goes in the CPU device's weight arena, in which form.
//
// A pure function of the tensors' shapes and types, so that the planner counts the same bytes that
// the loader fills:
//
//   WeightLayout layout = weight_layout(tensors, shard);
//   layout.bytes;                    // the arena
//   layout.entries[i].offset;        // 64-byte aligned
//
// Matrices are packed in their own block type (packed_matrix.h). What must not see 8-bit
// activations (the delta net's alpha and beta, the router) is packed as f32. Vectors become f32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/model.h"

namespace tessera::cpu {

enum class WeightForm : std::uint8_t { packed, packed_f32, vector, conv_taps };

struct WeightEntry {
  const TensorSlice* slice = nullptr;
  WeightForm form{};
  BlockType type{};  // as stored in the arena
  std::int64_t offset = 0;
  std::int64_t matrix_bytes = 0;  // of one matrix (expert)
  std::int64_t bytes() const { return matrix_bytes * slice->matrices; }
};

struct WeightLayout {
  std::vector<WeightEntry> entries;
  std::int64_t bytes = 0;
};

// Whether a shard holds this tensor.
bool in_shard(const TensorSlice& slice, const ModelSpec& spec, const ShardLayout& shard);

WeightLayout weight_layout(std::span<const TensorSlice> tensors, const ModelSpec& spec,
                           const ShardLayout& shard);

}  // namespace tessera::cpu
