// A weight matrix in the layout that the matrix-product kernels read.
//
// Rows are taken 16 at a time: one group. Within a group, word w (4 bytes) of a block is stored for
// the 16 rows side by side, one 64-byte line, so a vector lane is an output row. What does not fill
// a word (the f16 scale of Q8_0, the elements of F16) goes to a second plane behind the lines:
//
//   group: lines[blocks][words][16 rows] u32 | tails[blocks][16 rows] of 0, 1 or 2 bytes | pad to
//   64
//
// So a packed matrix is a permutation of the file's bytes (bits, in the qh words of Q5_0 and Q5_1):
// no larger than the file but for the last group's missing rows, which are zero, and under 64 bytes
// a group, and numerically the file's.
//
// Nothing here owns memory or keeps state; all of it may be called from any number of threads.
//
//   MatrixSource source{type, rows, cols, tensor_bytes, row_bytes(type, cols)};
//   std::byte* dst = ...;                                   // 64-byte aligned, packed_bytes(...)
//   pack_groups(source, {0, group_count(rows)}, dst);       // or a share of the groups per thread
//   PackedMatrix matrix(type, rows, cols, dst);
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/block_format.h"

namespace tessera::cpu {

inline constexpr int kGroupRows = 16;

constexpr std::int64_t group_count(std::int64_t rows) {
  return (rows + kGroupRows - 1) / kGroupRows;
}

// Groups [begin, end) of a matrix.
struct GroupRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Where the parts of one block of `type` go.
struct PackedLayout {
  int elems = 0;         // elements of a block
  int bytes = 0;         // bytes of a block in the file
  int words = 0;         // whole words of it, one line each
  int words_from = 0;    // byte of the block at which they start
  int tail_bytes = 0;    // 0, 1 or 2
  int tail_from = 0;     // byte of the block at which the tail starts
  int spread_word = -1;  // the word whose 32 bits are one per element, if any
};
PackedLayout packed_layout(BlockType type);

// Bytes of one group, a multiple of 64, and of a whole matrix. cols is a multiple of the block;
// rows, cols >= 1.
std::int64_t packed_group_bytes(BlockType type, std::int64_t cols);
std::int64_t packed_bytes(BlockType type, std::int64_t rows, std::int64_t cols);

// Rows as a file holds them; row r starts at data + r * row_stride_bytes. No alignment needed.
struct MatrixSource {
  BlockType type = BlockType::F32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* data = nullptr;
  std::int64_t row_stride_bytes = 0;
};

// A view of packed memory.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(BlockType type, std::int64_t rows, std::int64_t cols, const std::byte* data)
      : type_(type),
        rows_(rows),
        cols_(cols),
        group_bytes_(packed_group_bytes(type, cols)),
        data_(data) {}

  BlockType type() const { return type_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t groups() const { return group_count(rows_); }
  std::int64_t group_bytes() const { return group_bytes_; }
  std::int64_t bytes() const { return groups() * group_bytes_; }
  const std::byte* data() const { return data_; }

 private:
  BlockType type_ = BlockType::F32;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::int64_t group_bytes_ = 0;
  const std::byte* data_ = nullptr;
};

// Writes some groups of the packed form of `source`. `matrix` is where group 0 of the matrix is or
// would be, whatever the range; it is 64-byte aligned.
void pack_groups(const MatrixSource& source, GroupRange groups, std::byte* matrix);

// Row `row` as cols floats, bitwise what dequantize_row makes of the file's row.
void dequantize_packed_row(const PackedMatrix& matrix, std::int64_t row, float* dst);

}  // namespace tessera::cpu
