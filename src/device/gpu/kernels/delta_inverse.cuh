// The chunked delta rule's triangular systems: (1 + A)^-1 in place, in f32, of the 64 x 64 matrices
// of two heads side by side.
//
// First the eight diagonal blocks of 16, a warp each, by substitution; then twice two neighbours of
// the diagonal become one of twice the size:
//
//   (1 + [A1 0; A21 A2])^-1 = [X1 0; -X2 A21 X1, X2]
//
// A21 X1 goes where the matrix is zero, above the diagonal. Some 700 multiplications and 300 reads
// of shared memory a warp, all eight alike; a thread for each column of the whole takes 2,000 of
// both.
#pragma once

#include "device/gpu/kernels/delta_rows.cuh"

namespace tessera::gpu {
namespace {

constexpr int kSystemStride = kChunk + 4;  // floats: rows of 16 bytes each, on different banks
constexpr int kBlock = 16;
// How a warp's lanes stand over eight columns of a product.
constexpr int kLaneColumns = 8, kLaneRows = kWarp / kLaneColumns;
static_assert(kWarps == 2 * (kChunk / kBlock));

// The 16 x 16 block at `a`, of which what stands below the diagonal counts. A lane solves for one
// column, the upper half of the warp for the same ones.
__device__ __forceinline__ void invert_block(float* a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, column = lane % kBlock;
  float x[kBlock];
#pragma unroll
  for (int row = 0; row < kBlock; ++row) {
    float sum[2] = {row == column ? 1.0f : 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < row; i += 4) {
      const float4 v = four_at(a + row * kSystemStride + i);
      sum[0] = fmaf(-v.x, x[i], sum[0]);
      if (i + 1 < row) sum[1] = fmaf(-v.y, x[i + 1], sum[1]);
      if (i + 2 < row) sum[0] = fmaf(-v.z, x[i + 2], sum[0]);
      if (i + 3 < row) sum[1] = fmaf(-v.w, x[i + 3], sum[1]);
    }
    x[row] = sum[0] + sum[1];
  }
  __syncwarp();
  if (lane < kBlock) {
#pragma unroll
    for (int row = 0; row < kBlock; ++row) a[row * kSystemStride + column] = x[row];
  }
}

// sum[r] += left[row r of this lane][k] right[k][column] over k from `start` to `end`, for the rows
// from number kFirst on. A lane has every fourth row.
template <int kFirst, int kRows>
__device__ __forceinline__ void add_products(const float* left, const float* right, int start,
                                             int end, float (&sum)[kRows]) {
#pragma unroll 1
  for (int k = start; k < end; k += 4) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = right[(k + i) * kSystemStride];
#pragma unroll
    for (int r = kFirst; r < kRows; ++r) {
      const float4 v = four_at(left + r * kLaneRows * kSystemStride + k);
      sum[r] = fmaf(v.x, x[0], fmaf(v.y, x[1], fmaf(v.z, x[2], fmaf(v.w, x[3], sum[r]))));
    }
  }
}

// A column of to = sign * left right, kSize x kSize; `right` and `to` point to the column. Rows of
// `right` before `start` count as zeros; of a triangular `left` the quarter above the diagonal
// does.
template <int kSize, bool kTriangular>
__device__ __forceinline__ void multiply_column(const float* left, const float* right, float* to,
                                                int start, float sign) {
  constexpr int kRows = kSize / kLaneRows;
  const int first = static_cast<int>(threadIdx.x) % kWarp / kLaneColumns * kSystemStride;
  float sum[kRows] = {};
  if constexpr (kTriangular) {
    add_products<0>(left + first, right, start, kSize / 2, sum);
    add_products<kRows / 2>(left + first, right, kSize / 2, kSize, sum);
  } else {
    add_products<0>(left + first, right, start, kSize, sum);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) to[first + r * kLaneRows * kSystemStride] = sign * sum[r];
}

// The block of 2 kSize at `a`, whose diagonal blocks are inverted: this warp's part is the eight
// columns from `first` on. For all threads of the block; without a part where not `there`.
template <int kSize>
__device__ __forceinline__ void join_blocks(float* a, int first, bool there) {
  const int column = first + static_cast<int>(threadIdx.x) % kLaneColumns;
  float* left = a + kSize * kSystemStride;  // A21, then -X2 A21 X1
  float* product = a + kSize + column;      // A21 X1
  if (there) multiply_column<kSize, false>(left, a + column, product, first, 1.0f);
  __syncthreads();
  if (there) multiply_column<kSize, true>(left + kSize, product, left + column, 0, -1.0f);
  __syncthreads();
}

// Each of `heads` (1 or 2) matrices becomes (1 + a)^-1 on and below its diagonal; above it
// anything.
__device__ __forceinline__ void invert(float (*a)[kChunk][kSystemStride], int heads) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, head = warp / 4, part = warp % 4;
  const bool there = head < heads;
  const auto block = [&](int first) { return &a[head][first][first]; };
  if (there) invert_block(block(kBlock * part));
  __syncthreads();
  join_blocks<kBlock>(block(part / 2 * 2 * kBlock), part % 2 * 8, there);
  join_blocks<2 * kBlock>(block(0), part * 8, there);
}

}  // namespace
}  // namespace tessera::gpu
