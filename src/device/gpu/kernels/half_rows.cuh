// Rows of halves as the tensor-core kernels of prompts read them: in tiles of 128 rows by 64
// columns, 16 KB each, those of the same rows one after another. A tile stands as shared memory
// takes it: a row's 128 bytes in eight pieces, piece p of row r at p ^ r % 8. So one bulk copy
// brings a whole tile, and copies of single rows still find 128 bytes side by side.
//
// The columns of each 16 stand in the order 0, 2, ..., 14, 1, 3, ..., 15 (half_place()): what a
// 32-bit word of levels decodes to without moving bytes.
#pragma once

#include "device/gpu/kernels/input.cuh"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {

inline constexpr int kPieceHalves = 8;  // 16 bytes
inline constexpr int kHalfTile = kHalfTileRows * kTileCols;

// What a row's pieces are exchanged by.
__host__ __device__ constexpr int row_swizzle(int row) {
  return static_cast<int>(static_cast<unsigned>(row) % 8);
}

struct HalfRows {
  __half* at = nullptr;  // half_rows_bytes(), aligned to 128 bytes
  int col_tiles = 0;

  // The 128 bytes of column tile 0; those of tile i stand i * kHalfTile further.
  __host__ __device__ __half* row(int row) const {
    const auto r = static_cast<unsigned>(row);
    return at + std::int64_t{r / kHalfTileRows} * (col_tiles * kHalfTile) +
           r % kHalfTileRows * kTileCols;
  }
  __host__ __device__ __half* piece(int row, int piece) const {
    return this->row(row) + (piece ^ row_swizzle(row)) * kPieceHalves;
  }
};

// Where column c of a row stands among its columns.
__host__ __device__ constexpr int half_place(int c) {
  return c / 16 * 16 + (c % 2) * 8 + c % 16 / 2;
}
// Sixteen columns of a row of 128 bytes, the `sixteen`th of its four, from f32 in their order.
__device__ __forceinline__ void store_halves(__half* row, int swizzle, int sixteen,
                                             const float4 (&v)[4]) {
  const auto two = [](float x, float y) { return as_bits(__halves2half2(to_half(x), to_half(y))); };
  const auto store = [&](int piece, uint4 bits) {
    *reinterpret_cast<uint4*>(row + (piece ^ swizzle) * kPieceHalves) = bits;
  };
  store(2 * sixteen,
        {two(v[0].x, v[0].z), two(v[1].x, v[1].z), two(v[2].x, v[2].z), two(v[3].x, v[3].z)});
  store(2 * sixteen + 1,
        {two(v[0].y, v[0].w), two(v[1].y, v[1].w), two(v[2].y, v[2].w), two(v[3].y, v[3].w)});
}

// What rounding to halves leaves of a value, times kRestScale: so that it is about as large as the
// value and both together have 22 bits wherever the half itself has 11.
inline constexpr float kRestScale = 2048.0f;
__device__ __forceinline__ float4 half_rest(float4 v) {
  const auto rest = [](float x) { return (x - __half2float(to_half(x))) * kRestScale; };
  return {rest(v.x), rest(v.y), rest(v.z), rest(v.w)};
}

// The input's rows as halves, normed as asked; columns past the input's become zeros. `rest` may be
// {}; else it gets half_rest() of them.
GpuError halve_rows(const Launch& launch, const Input& in, int rows, const HalfRows& out,
                    const HalfRows& rest);

}  // namespace tessera::gpu
