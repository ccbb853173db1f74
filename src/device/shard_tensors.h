// What of a model's tensors a shard holds, whatever the device: the rules that every device's
// weight layout and the planner share.
//
//   if (!in_shard(slice, spec, shard)) continue;
//   switch (tensor_use(slice.role)) { ... }
//
// Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "model/model.h"

namespace tessera {

// How a tensor is used, which decides in what form a device stores it.
enum class TensorUse : std::uint8_t {
  matrix,         // multiplies rows, in its own block type
  expert_matrix,  // likewise, one an expert
  exact_matrix,   // multiplies rows and must not see 8-bit activations
  conv_taps,
  vector,
};
TensorUse tensor_use(TensorRole role);

// Whether a shard holds this tensor.
bool in_shard(const TensorSlice& slice, const ModelSpec& spec, const ShardLayout& shard);

// Whether it has the embedding table for the rows of tokens alone. A table that is the head as well
// is read whole for every token.
bool has_table_alone(const ModelSpec& spec, const ShardLayout& shard);

// The parts of a shard whose matrices a CPU device can leave in the model's file, in the order in
// which they go: the embedding, of which a token reads one row; the layers from the last to the
// first; the head. Vectors stay in memory, and experts have homes of their own.
int file_part_count(const ModelSpec& spec, const ShardLayout& shard);
// Whether it is one of the first ShardLayout::file_parts of these.
bool stays_in_file(const TensorSlice& slice, const ModelSpec& spec, const ShardLayout& shard);

// Which places of a layer's expert tensors hold which expert at the start: the residents in the
// order of their numbers, then the spare ones, -1.
std::vector<std::int32_t> expert_places(const LayerExperts& experts);

}  // namespace tessera
