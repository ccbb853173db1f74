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
// activations (the delta net's alpha and beta, the router) is packed as f32, and with
// ShardLayout::f32_weights every matrix is. Vectors become f32.
// Of a layer with ShardLayout::experts, the expert tensors have places for its residents and spare
// ones only; what stays in the file (ShardLayout::file_parts) has none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/shard_tensors.h"

namespace tessera::cpu {

enum class WeightForm : std::uint8_t { packed, packed_f32, vector, conv_taps };

struct WeightEntry {
  const TensorSlice* slice = nullptr;
  WeightForm form{};
  BlockType type{};  // as stored in the arena
  std::int64_t offset = 0;
  std::int64_t matrix_bytes = 0;  // of one matrix (expert)
  std::int64_t places = 1;        // matrices that there is room for
  bool in_file = false;           // it has none, and is read in the file each time it is used
  std::int64_t bytes() const { return matrix_bytes * places; }
};

struct WeightLayout {
  std::vector<WeightEntry> entries;
  std::int64_t bytes = 0;
};

WeightLayout weight_layout(std::span<const TensorSlice> tensors, const ModelSpec& spec,
                           const ShardLayout& shard);

}  // namespace tessera::cpu
