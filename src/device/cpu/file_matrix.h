// Matrices that stay in the mapped file: packed a few row groups at a time, straight before their
// use. The same bytes in the same kernels as those of a packed matrix, hence the same results, for
// one more pass over the bytes.
//
//   for_each_packed(slice, shape, {.groups = {0, shape.groups()}}, room,
//                   [&](const PackedMatrix& part, std::int64_t first_row) { matmul(...); });
//
// A thread has a room of its own. Errors of the file are its guard's to tell (gguf::File).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "device/cpu/packed_matrix.h"
#include "device/cpu/weights.h"

namespace tessera::cpu {

// What is packed before it is used stays in a core's second-level cache.
inline constexpr std::int64_t kPackBytes = 128 << 10;

// One thread's room for packing.
struct PackRoom {
  std::byte* bytes = nullptr;  // 64-byte aligned
  std::int64_t size = 0;       // at least one group of any of the matrices
  std::vector<float> rows{};
};

// A room for the matrices of a shard that stay in the file; zeros where none do.
struct PackRoomSize {
  std::int64_t bytes = 0;   // PackRoom::size
  std::int64_t floats = 0;  // PackRoom::rows
  std::int64_t total() const { return bytes + floats * std::int64_t{sizeof(float)}; }
};
PackRoomSize pack_room_size(const WeightLayout& layout);

// `shape` says what the matrix is packed as; `range` which groups of which matrix of the tensor.
template <typename F>
void for_each_packed(const TensorSlice& slice, const PackedMatrix& shape, const PackRange& range,
                     PackRoom& room, F f) {
  const std::int64_t step = room.size / shape.group_bytes();
  for (std::int64_t at = range.groups.begin; at < range.groups.end; at += step) {
    const std::int64_t last = std::min(range.groups.end, at + step);
    pack_range(slice, shape.type(), {range.matrix, {at, last}}, room.bytes, room.rows);
    const std::int64_t first_row = at * kGroupRows;
    f(PackedMatrix(shape.type(), std::min(last * kGroupRows, shape.rows()) - first_row,
                   shape.cols(), room.bytes),
      first_row);
  }
}

}  // namespace tessera::cpu
