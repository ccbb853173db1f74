// Decode products: one warp's share of 16 weight rows times up to 8 staged columns.
//
// A warp takes a range of 64-column tiles. Per group of 32 columns the levels' dot products are
// exact integers; the groups are summed in f32 in rising order, so a column's result depends on
// nothing but that column.
#pragma once

#include "device/gpu/kernels/input.cuh"

namespace tessera::gpu {

// Adding this to an integer below 2^22 in size makes the bits of a float 12582912 above it.
inline constexpr int kFloatMagic = 0x4b400000;
__device__ __forceinline__ float magic_float(int bits) {
  return __int_as_float(bits) - 12582912.0f;
}

// acc[0..3]: (row g, column 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). With kCols 1 only
// column 0 counts: acc[0] and acc[2] of the lanes with t = 0.
template <BlockType kType, int kCols>
__device__ __forceinline__ void dot_tile(const Tile<kType>& tile, const Staged<kCols>& x,
                                         int col_tile, int lane, float (&acc)[4]) {
  constexpr int kParts = Tile<kType>::kParts;
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half_tile = 0; half_tile < 2; ++half_tile) {
    const int group = 2 * col_tile + half_tile;
    std::uint32_t b[2] = {0, 0};
    if (g < x.n) {
      const char* at = x.q + g * x.q_stride + group * 32 + 4 * t;
      b[0] = *reinterpret_cast<const std::uint32_t*>(at);
      b[1] = *reinterpret_cast<const std::uint32_t*>(at + 16);
    }
    std::uint32_t a[4];
    tile.levels(half_tile, a);
    float scale[kParts][2], minimum[kParts][2];
    tile.factors(half_tile, scale, minimum);
    float factor[2], sums[2][2];
#pragma unroll
    for (int j = 0; j < (kCols == 1 ? 1 : 2); ++j) {
      const int column = kCols == 1 ? 0 : 2 * t + j;
      factor[j] = x.factors[group * kCols + column];
      if constexpr (Tile<kType>::kHasMinimum) {
        sums[0][j] = x.factors[(x.groups + group) * kCols + column];
        sums[1][j] = x.factors[(2 * x.groups + group) * kCols + column];
        if constexpr (kParts == 1) sums[0][j] = __fadd_rn(sums[0][j], sums[1][j]);
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      int d[4];
      if constexpr (kParts == 1)
        multiply_s8_k32(d, a, b, kFloatMagic);
      else
        multiply_s8_k16(d, a[2 * part], a[2 * part + 1], b[part], kFloatMagic);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < (kCols == 1 ? 1 : 2); ++j) {
          float& sum = acc[2 * half + j];
          sum =
              __fmaf_rn(magic_float(d[2 * half + j]), __fmul_rn(scale[part][half], factor[j]), sum);
          if constexpr (Tile<kType>::kHasMinimum)
            sum = __fmaf_rn(-minimum[part][half], sums[part][j], sum);
        }
    }
  }
}

// Tiles [begin, end) of one row tile. Loads run kDepth tiles ahead of the arithmetic; none is
// loaded twice, which would cross the link twice where an expert is read over it.
template <BlockType kType, int kCols, int kDepth = 2>
__device__ __forceinline__ void dot_range(const Planes& w, int row_tile, int begin, int end,
                                          const Staged<kCols>& x, int lane, float (&acc)[4]) {
  Tile<kType> tiles[kDepth];
  for (int base = begin; base < end; base += kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i)
      if (base + i < end) tiles[i].load(w, row_tile, base + i, lane);
#pragma unroll
    for (int i = 0; i < kDepth; ++i)
      if (base + i < end) dot_tile<kType, kCols>(tiles[i], x, base + i, lane, acc);
  }
}

// The first tiles of a share, loaded ahead of the input that they will meet.
inline constexpr int kEarlyTiles = 2;
template <BlockType kType, int kDepth = kEarlyTiles>
struct EarlyTiles {
  Tile<kType> tiles[kDepth];

  __device__ __forceinline__ void load(const Planes& w, int row_tile, int begin, int end,
                                       int lane) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i)
      if (begin + i < end) tiles[i].load(w, row_tile, begin + i, lane);
  }
  // The whole share: these tiles, then the rest.
  template <int kCols>
  __device__ __forceinline__ void dot(const Planes& w, int row_tile, int begin, int end,
                                      const Staged<kCols>& x, int lane, float (&acc)[4]) const {
#pragma unroll
    for (int i = 0; i < kDepth; ++i)
      if (begin + i < end) dot_tile<kType, kCols>(tiles[i], x, begin + i, lane, acc);
    if (begin + kDepth < end)
      dot_range<kType, kCols>(w, row_tile, begin + kDepth, end, x, lane, acc);
  }
};

// Fetches one row tile's planes into L2 with all threads of the block.
__device__ __forceinline__ void prefetch_tile(const Planes& w, int row_tile) {
  if (w.col_tiles == 0) return;
  const std::int64_t at = static_cast<std::int64_t>(row_tile) * w.col_tiles;
  prefetch_block(w.data + at * w.quant_tile_bytes, w.col_tiles * w.quant_tile_bytes);
  if (w.extra_tile_bytes > 0)
    prefetch_block(w.data + w.extra + at * w.extra_tile_bytes, w.col_tiles * w.extra_tile_bytes);
  prefetch_block(w.data + w.scales + at * w.scale_tile_bytes, w.col_tiles * w.scale_tile_bytes);
}

// kCommon: the type is one of is_common().
template <int kCols, bool kCommon = false, int kDepth = 2>
__device__ __forceinline__ void dot_quantised(const Planes& w, int row_tile, int begin, int end,
                                              const Staged<kCols>& x, int lane, float (&acc)[4]) {
#define TESSERA_DOT(TYPE) dot_range<TYPE, kCols, kDepth>(w, row_tile, begin, end, x, lane, acc)
  if constexpr (kCommon) {
    TESSERA_GPU_FOR_COMMON(w.type, TESSERA_DOT)
  } else {
    TESSERA_GPU_FOR_TYPE(w.type, TESSERA_DOT)
  }
#undef TESSERA_DOT
}

// Two plain weights a 32-bit word.
__device__ __forceinline__ float2 plain_pair(BlockType type, std::uint32_t word) {
  if (type == BlockType::BF16)
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  return __half22float2(as_half2(word));
}

// Four neighbours from number `at` of a plain matrix on, read once.
__device__ __forceinline__ float4 plain_four(const Planes& w, std::int64_t at) {
  if (w.type == BlockType::F32) {
    const uint4 raw = load_stream(reinterpret_cast<const uint4*>(w.data + at * 4));
    return {__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
            __uint_as_float(raw.w)};
  }
  const uint2 raw = load_stream(reinterpret_cast<const uint2*>(w.data + at * 2));
  const float2 a = plain_pair(w.type, raw.x), b = plain_pair(w.type, raw.y);
  return {a.x, a.y, b.x, b.y};
}

// The columns [begin, end) of one plain row times every staged column: out[column] in every lane.
template <int kCols>
__device__ __forceinline__ void dot_plain(const Planes& w, int row, int begin, int end,
                                          const Staged<kCols>& x, int lane, float (&out)[kCols]) {
#pragma unroll
  for (int j = 0; j < kCols; ++j) out[j] = 0;
  const bool wide = w.type == BlockType::F32;
  const std::byte* from = w.data + static_cast<std::int64_t>(row) * w.cols * (wide ? 4 : 2);
  const int step = kWarp * 4;
#pragma unroll 4
  for (int c = begin + lane * 4; c < end; c += step) {
    float v[4];
    if (wide) {
      const uint4 raw = load_stream(reinterpret_cast<const uint4*>(from + c * 4));
      v[0] = __uint_as_float(raw.x), v[1] = __uint_as_float(raw.y);
      v[2] = __uint_as_float(raw.z), v[3] = __uint_as_float(raw.w);
    } else {
      const uint2 raw = load_stream(reinterpret_cast<const uint2*>(from + c * 2));
      const float2 a = plain_pair(w.type, raw.x), b = plain_pair(w.type, raw.y);
      v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
    }
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      if (j >= x.n) break;
      const float4 u = *reinterpret_cast<const float4*>(x.floats + j * x.padded + c);
      out[j] = __fmaf_rn(v[3], u.w,
                         __fmaf_rn(v[2], u.z, __fmaf_rn(v[1], u.y, __fmaf_rn(v[0], u.x, out[j]))));
    }
  }
#pragma unroll
  for (int j = 0; j < kCols; ++j) out[j] = warp_sum(out[j]);
}
template <int kCols>
__device__ __forceinline__ void dot_plain_row(const Planes& w, int row, const Staged<kCols>& x,
                                              int lane, float (&out)[kCols]) {
  dot_plain<kCols>(w, row, 0, w.cols, x, lane, out);
}

// Adds up the warps' shares of one row tile in the order of the warps. `shares` is shared memory,
// [kDecodeWarps][16][kCols]; the result of (row r, column c) is returned to thread r * kCols + c
// (others get 0). Begins by writing, ends without a barrier: sync before the next call.
template <int kCols>
__device__ __forceinline__ float add_shares(float* shares, const float (&acc)[4]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, t = lane % 4;
  float* own = shares + warp * kTileRows * kCols;
  if constexpr (kCols == 1) {
    if (t == 0) {
      own[g] = acc[0];
      own[g + 8] = acc[2];
    }
  } else {
    *reinterpret_cast<float2*>(own + g * kCols + 2 * t) = make_float2(acc[0], acc[1]);
    *reinterpret_cast<float2*>(own + (g + 8) * kCols + 2 * t) = make_float2(acc[2], acc[3]);
  }
  __syncthreads();
  float sum = 0;
  if (static_cast<int>(threadIdx.x) < kTileRows * kCols)
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) sum += shares[w * kTileRows * kCols + threadIdx.x];
  return sum;
}

// This warp's part of `tiles` column tiles.
__device__ __forceinline__ int share_begin(int tiles, int warp) {
  return tiles * warp / kDecodeWarps;
}

}  // namespace tessera::gpu
