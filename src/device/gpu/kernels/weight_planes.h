// How a weight matrix lies in GPU memory: the file's numbers, rearranged so that a warp reads its
// operands of a matrix instruction as whole coalesced pieces.
//
// A matrix of `rows` x `cols` in a quantised type is cut into tiles of 16 rows x 64 columns; rows
// are padded to 16 and columns to 64 with blocks that are exactly zero. The tile of row tile r and
// column tile c has index r * col_tiles + c in every plane. Lane l of a warp stands for rows
// g = l / 4 and g + 8 of a tile and, with t = l % 4, for the columns 4t..4t+3 and 16+4t..16+4t+3 of
// each group of 32: its share of an m16n8k32 operand.
//
//   quants  4-bit types: per tile [lane][4] words; word 2 * group + half (half 1: row g + 8), byte
//           j: low nibble column 4t + j of the group, high nibble column 16 + 4t + j.
//           Q4_K: word 2 * high + half (high: columns 16 + 4t), low nibble group 0, high nibble
//           group 1: masked, a word is an operand as it stands.
//           Q6_K: six bits in bytes. Word 2 * group + half holds columns 4t; extra has columns
//           16 + 4t of half 0; those of half 1 stand in the upper two bits of these three words,
//           bits 5 and 4 in half 0's, 3 and 2 in half 1's, 1 and 0 in extra's.
//           8-bit (Q8_0): per tile [group][lane][4] words: (half 0, low), (half 1, low), (half 0,
//           high), (half 1, high) where high means columns 16 + 4t. Bytes are signed.
//           2-bit (Q2_K, Q3_K): per tile [lane][2] words, one a half; bits 2 * (2 * group + high)
//           of byte j.
//   extra   Q6_K: per tile [lane][group] one word, see above. Q5_0, Q5_1, Q5_K, Q3_K: one high
//           bit, per tile [lane] one word; bit 4 * half + 2 * group + high of byte j. Q5 and Q6
//           levels are then unsigned (0..31, 0..63), Q3_K's 0..7: the kernels subtract 16, 32
//           and 4.
//   scales  what is per group, for the tile's two groups and 16 rows, [g][group][half] of
//           Q4_0, Q5_0, Q8_0, IQ4_NL   f16 d
//           Q4_1, Q5_1                 f16 d, f16 m
//           Q4_K, Q5_K                 six bits: see below
//           Q2_K                       u8 (scale | min << 4) of columns 0..15, then of 16..31
//           Q3_K, Q6_K                 s8 scale, likewise
//           IQ4_XS, MXFP4              s8 scale; u8 exponent
//           Q4_K and Q5_K: 48 bits for each g, their lower words first, [g] u32, then [g] u16: 48
//           bytes a tile. Pairs of scale and min of [group][half], the scale's lowest bit / the
//           min's: 0 / 16 and 6 / 22 of the lower word; 2 / 10 of the upper one; of the last pair
//           the two lowest bits at 0 / 8 of the upper, the other four at 12 / 28 of the lower word.
//   supers  per 256 columns and row, [g][half]: Q4_K, Q5_K, Q2_K f16 d, f16 dmin (64 bytes);
//           Q3_K, Q6_K, IQ4_XS f16 d (32).
//
// F32, F16 and BF16 matrices are row-major, one plane, rows unpadded, columns as they are.
//
// Planes start at multiples of 256 bytes; a matrix is a multiple of 256 bytes long. All functions
// are pure; preconditions (cols a multiple of the block, sizes positive) are CHECKed by the caller.
//
//   PlaneLayout layout = plane_layout(BlockType::Q4_K, rows, cols);
//   std::vector<std::byte> planes(layout.bytes);
//   repack_rows(BlockType::Q4_K, file_rows, rows, cols, 0, row_tiles(rows), planes.data());
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/block_format.h"

namespace tessera::gpu {

inline constexpr int kTileRows = 16;
inline constexpr int kTileCols = 64;
inline constexpr int kSuperCols = 256;
inline constexpr std::int64_t kPlaneAlignment = 256;

struct PlaneLayout {
  std::int64_t row_tiles = 0;  // 0 for F32, F16, BF16
  std::int64_t col_tiles = 0;
  // Bytes of one tile (supers: of one row tile's 256 columns) in each plane; 0: no such plane.
  int quant_bytes = 0;
  int extra_bytes = 0;
  int scale_bytes = 0;
  int super_bytes = 0;
  // From the start of the matrix.
  std::int64_t quants = 0;
  std::int64_t extra = 0;
  std::int64_t scales = 0;
  std::int64_t supers = 0;
  std::int64_t bytes = 0;  // of the whole matrix
};

constexpr std::int64_t row_tiles(std::int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}
constexpr bool is_plain(BlockType type) {
  return type == BlockType::F32 || type == BlockType::F16 || type == BlockType::BF16;
}

PlaneLayout plane_layout(BlockType type, std::int64_t rows, std::int64_t cols);

// Fills the row tiles [tile_begin, tile_end) of every plane; `src` is the whole matrix as in the
// file and `dst` the whole repacked matrix. For plain types a row tile is 16 rows. Different ranges
// may be filled by different threads; padding inside the tiles is written, alignment gaps are not.
void repack_rows(BlockType type, const std::byte* src, std::int64_t rows, std::int64_t cols,
                 std::int64_t tile_begin, std::int64_t tile_end, std::byte* dst);

}  // namespace tessera::gpu
