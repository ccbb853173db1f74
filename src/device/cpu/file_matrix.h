// Matrices that stay in the mapped file: multiplied a few row groups at a time, as the file has
// them (reads_file()), or else packed straight before their use. The results have the bits of a
// packed matrix either way.
//
//   for_each_part(slice, shape, {.groups = {0, shape.groups()}}, room,
//                 [&](const auto& part, GroupRange groups, std::int64_t first_row) {
//                   matmul(kernels, part, groups, x, ids, n, out + first_row, stride);
//                 });
//
// A thread has a room of its own. Errors of the file are its guard's to tell (gguf::File).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "device/cpu/matmul.h"
#include "device/cpu/packed_matrix.h"
#include "device/cpu/weights.h"

namespace tessera::cpu {

// So much of a matrix is multiplied with all rows at once: packed or not, it stays in a core's
// second-level cache.
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

// Calls f(part, all of its groups, its first row in the matrix) for parts that cover the groups;
// `part` is a MatrixSource or a PackedMatrix. `shape` says what the matrix would be packed as;
// `range` which groups of which matrix of the tensor.
template <typename F>
void for_each_part(const TensorSlice& slice, const PackedMatrix& shape, const PackRange& range,
                   PackRoom& room, F f) {
  const std::int64_t step = room.size / shape.group_bytes();
  for (std::int64_t at = range.groups.begin; at < range.groups.end; at += step) {
    const std::int64_t last = std::min(range.groups.end, at + step);
    const std::int64_t first_row = at * kGroupRows;
    if (shape.type() == slice.type && reads_file(slice.type)) {
      f(file_rows(slice, {range.matrix, {at, last}}), GroupRange{0, last - at}, first_row);
    } else {
      pack_range(slice, shape.type(), {range.matrix, {at, last}}, room.bytes, room.rows);
      const std::int64_t rows = std::min(last * kGroupRows, shape.rows()) - first_row;
      f(PackedMatrix(shape.type(), rows, shape.cols(), room.bytes), GroupRange{0, last - at},
        first_row);
    }
  }
}

}  // namespace tessera::cpu
