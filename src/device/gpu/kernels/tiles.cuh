// Tensor-core products for many rows: 16 warps compute 256 weight rows times up to 128 tokens, the
// weights decoded to f16 in the registers in which the matrix instruction takes them, the tokens
// through a ring of shared-memory tiles filled by asynchronous copies.
//
// Tokens are f16 rows with the columns of each 16 in the order 0, 2, ..., 14, 1, 3, ..., 15
// (half_place()): what a 32-bit word of levels decodes to without moving bytes. A column of the
// result depends on nothing but that token, and its sum runs over the columns in rising order.
//
// Floor: 2 * rows * cols * tokens operations at the tensor rate (790 TFLOP/s measured for f16 on an
// H200). A block reads 0.57 bytes of weights and 128 / 256 of its token bytes a product of 256 x
// 128.
#pragma once

#include "device/gpu/kernels/formats.cuh"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/shared_memory.cuh"
#include "device/gpu/kernels/sizes.h"
#include "device/gpu/kernels/warpgroup.cuh"

namespace tessera::gpu {

inline constexpr int kTileWarps = 16;
inline constexpr int kTileThreads = kTileWarps * kWarp;
// Tiles of tokens that are on their way, and stages: products of the last two tiles may still read.
inline constexpr int kTilesAhead = 3, kTileStages = kTilesAhead + 2;
inline constexpr int kStageBytes = kTileTokens * kTileCols * 2;
inline constexpr int kTileShared = kTileStages * kStageBytes + 1024;

// Where column c of a row of halves stands.
__host__ __device__ constexpr int half_place(int c) {
  return c / 16 * 16 + (c % 2) * 8 + c % 16 / 2;
}

// Four signed or unsigned bytes as halves: (0, 2) and (1, 3), less `zero`.
template <bool kSigned>
__device__ __forceinline__ void bytes_to_halves(std::uint32_t bytes, __half2 zero, __half2& even,
                                                __half2& odd) {
  const std::uint32_t raised = kSigned ? bytes ^ 0x80808080u : bytes;
  even = __hsub2(as_half2(permute(raised, 0x64646464u, 0x4240u)), zero);
  odd = __hsub2(as_half2(permute(raised, 0x64646464u, 0x4341u)), zero);
}

// The A operands of the two 16-column steps of one group of 32.
template <BlockType kType>
__device__ __forceinline__ void decode_group(const Tile<kType>& tile, int group,
                                             std::uint32_t (&a)[2][4]) {
  using T = Tile<kType>;
  constexpr bool kSigned = T::kEight || T::kLinear || kType == BlockType::MXFP4;
  // Types whose minimum is a whole number of steps lose it in the conversion.
  constexpr float kZero = kType == BlockType::Q4_0   ? 8
                          : kType == BlockType::Q5_0 ? 16
                          : kType == BlockType::Q6_K ? 32
                          : kType == BlockType::Q3_K ? 4
                                                     : 0;
  constexpr bool kAffine = T::kHasMinimum && kZero == 0;
  std::uint32_t levels[4];
  tile.levels(group, levels);
  float scale[T::kParts][2], minimum[T::kParts][2];
  tile.factors(group, scale, minimum);
  const __half2 zero = __float2half2_rn(1024.0f + kZero + (kSigned ? 128.0f : 0.0f));
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int part = T::kParts == 1 ? 0 : step;
      const __half2 s = __float2half2_rn(scale[part][half]);
      __half2 even, odd;
      bytes_to_halves<kSigned>(levels[2 * step + half], zero, even, odd);
      if constexpr (kAffine) {
        const __half2 m = __float2half2_rn(-minimum[part][half]);
        even = __hfma2(even, s, m);
        odd = __hfma2(odd, s, m);
      } else {
        even = __hmul2(even, s);
        odd = __hmul2(odd, s);
      }
      a[step][half] = as_bits(even);
      a[step][2 + half] = as_bits(odd);
    }
}

// The tokens of one block: rows of halves, given directly or through a list.
struct TokenTile {
  const __half* x;
  std::int64_t stride;       // halves
  const std::int32_t* list;  // null: token i is row first + i
  int divisor;               // of the list's entries: pair -> row
  int first, n;              // tokens of this tile

  __device__ const __half* row(int i) const {
    return x + (list == nullptr ? first + i : list[first + i] / divisor) * stride;
  }
};

// Copies column tile `tile` of the tokens into one stage. Each thread brings two pieces of 16
// bytes, always of the same rows: `rows` holds their addresses.
__device__ __forceinline__ void copy_stage(char* stage, const __half* const (&rows)[2], int n,
                                           int tile) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = static_cast<int>(threadIdx.x) / 8 + 64 * i,
              piece = static_cast<int>(threadIdx.x) % 8;
    copy_async(stage + token * 128 + (piece ^ (token % 8)) * 16,
               rows[i] + tile * kTileCols + piece * 8, token < n);
  }
}

// One 16 x 128 step of a warp without the warpgroup instruction.
template <int kColumns>
__device__ __forceinline__ void warp_multiply(float* acc, const std::uint32_t (&a)[4],
                                              const char* stage, int step) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < kColumns / 16; ++j) {
    std::uint32_t b[4];
    const int token = 16 * j + lane / 16 * 8 + lane % 8, piece = 2 * step + lane / 8 % 2;
    load_matrices(b, stage + token * 128 + (piece ^ (token % 8)) * 16);
    float(&low)[4] = *reinterpret_cast<float(*)[4]>(acc + 8 * j);
    float(&high)[4] = *reinterpret_cast<float(*)[4]>(acc + 8 * j + 4);
    multiply_f16(low, a, b[0], b[1]);
    multiply_f16(high, a, b[2], b[3]);
  }
}

#ifdef TESSERA_GPU_WGMMA
// The products of one tile. A half is decoded while those of the half before run: at the end those
// of the second are still under way.
template <BlockType kType, int kColumns>
__device__ __forceinline__ void multiply_stage(const Tile<kType>& tile, const char* stage,
                                               float* acc) {
  const std::uint64_t b = swizzled_tile(shared_address(stage));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t a[2][4];
    decode_group(tile, half, a);
    group_fence();
#pragma unroll
    for (int step = 0; step < 2; ++step)
      group_multiply<kColumns>(acc, a[step], b + 2 * static_cast<unsigned>(2 * half + step));
    group_commit();
    group_wait<1>();
  }
}
template <int kColumns>
__device__ __forceinline__ void end_products(float* acc) {
  group_wait<0>();
  group_results<kColumns>(acc);
}
#else
template <BlockType kType, int kColumns>
__device__ __forceinline__ void multiply_stage(const Tile<kType>& tile, const char* stage,
                                               float* acc) {
  std::uint32_t a[2][2][4];
  decode_group(tile, 0, a[0]);
  decode_group(tile, 1, a[1]);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    warp_multiply<kColumns>(acc, a[step / 2][step % 2], stage, step);
}
template <int kColumns>
__device__ __forceinline__ void end_products(float*) {}
#endif

// acc[4 * j + i] of multiply_f16 for this warp's row tile and the columns 8j..: all column tiles.
// `row_tile` may lie past the matrix: then the warp computes with what is there and stores nothing.
template <BlockType kType, int kColumns>
__device__ void multiply_tiles(const Planes& w, int row_tile, const TokenTile& tokens, char* shared,
                               float* acc) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  row_tile = min(row_tile, w.row_tiles - 1);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) acc[i] = 0;
  const __half* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    rows[i] = tokens.row(min(static_cast<int>(threadIdx.x) / 8 + 64 * i, tokens.n - 1));
  const int n = w.col_tiles;
#pragma unroll
  for (int s = 0; s < kTilesAhead; ++s) {
    if (s < n) copy_stage(shared + s * kStageBytes, rows, tokens.n, s);
    copy_commit();
  }
  Tile<kType> current, next;
  current.load(w, row_tile, 0, lane);
  for (int tile = 0; tile < n; ++tile) {
    next.load(w, row_tile, min(tile + 1, n - 1), lane);
    copy_wait<kTilesAhead - 1>();
#ifdef TESSERA_GPU_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    // Over the tile before the last one, whose products every warp has waited for.
    if (tile + kTilesAhead < n)
      copy_stage(shared + (tile + kTilesAhead) % kTileStages * kStageBytes, rows, tokens.n,
                 tile + kTilesAhead);
    copy_commit();
    multiply_stage<kType, kColumns>(current, shared + tile % kTileStages * kStageBytes, acc);
    current = next;
  }
  end_products<kColumns>(acc);
  copy_wait<0>();
  __syncthreads();
}

}  // namespace tessera::gpu
