// Decode products of Q4_K and Q6_K with eight rows of activations at once: what supers.cuh says of
// them. Weights may be in registers or elsewhere: who has them says how a part of them is read.
#pragma once

#include "device/gpu/kernels/supers.cuh"

namespace tessera::gpu {

// [the lane's part in RowSums][row g: columns 2t, 2t + 1; row g + 8]
struct EightSums {
  float of[4][4] = {};
  __device__ __forceinline__ float total(int i) const {
    return __fadd_rn(__fadd_rn(of[0][i], of[1][i]), __fadd_rn(of[2][i], of[3][i]));
  }
};

// A super-block in registers, as dot_parts() asks for it: the levels of a tile of 64 columns (Q6_K:
// of its half `odd`), and the scales of the lane `part` of each four.
struct RawParts {
  const RawSuper& raw;
  int g;
  __device__ __forceinline__ void levels(int tile, std::uint32_t (&q)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) q[i] = raw.q[tile][i];
  }
  __device__ __forceinline__ void levels(int tile, int odd, std::uint32_t (&w)[3]) const {
    w[0] = raw.q[tile][2 * odd], w[1] = raw.q[tile][2 * odd + 1], w[2] = raw.x[tile][odd];
  }
  __device__ __forceinline__ void scales(int part, std::uint32_t (&s)[2]) const {
    s[0] = shuffle(raw.s[0], 4 * g + part), s[1] = shuffle(raw.s[1], 4 * g + part);
  }
  __device__ __forceinline__ std::uint32_t scales_of_half(int half, int part) const {
    return shuffle(raw.s[half], 4 * g + part);
  }
  __device__ __forceinline__ std::uint32_t super(int i) const { return raw.d[i]; }
};

// `rows`: of super_row_bytes() each, this super-block's place in the first.
template <BlockType kType, typename Parts>
__device__ __forceinline__ void dot_parts(const Parts& w, const char* rows, int row_bytes, int lane,
                                          EightSums& sums) {
  const int g = lane / 4, t = lane % 4;
  const char* own = rows + g * row_bytes + t * 8;
  const char* factors = rows + 2 * t * row_bytes + kSuperFactors;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    if constexpr (kType == BlockType::Q4_K) {
      std::uint32_t s[2], q[4];
      w.scales(part, s);
      w.levels(part, q);
      int d[2][4];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const uint2 b = *reinterpret_cast<const uint2*>(own + (2 * part + odd) * 32);
        std::uint32_t a[4];
        levels_q4(q, odd, a);
        multiply_u8_k32(d[odd], a, b);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4 x = *reinterpret_cast<const float4*>(factors + j * row_bytes + part * 16);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const SixBits of{s[0], s[1]};
          const float scale_a = of.number(2 * half), scale_b = of.number(4 + 2 * half, 4);
          const float min_a = of.number(1 + 2 * half), min_b = of.number(5 + 2 * half);
          float& sum = sums.of[part][2 * half + j];
          const float term =
              q4_term(scale_a, scale_b, x.x, x.z, static_cast<float>(d[0][2 * half + j]),
                      static_cast<float>(d[1][2 * half + j]));
          sum = q4_sum(w.super(half), term, q4_minimum(min_a, min_b, x.y, x.w), sum);
        }
      }
    } else {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int group = 4 * c + part, tile = group / 2, odd = group % 2;
        const std::uint32_t s = w.scales_of_half(c, part);
        const uint2 b = *reinterpret_cast<const uint2*>(own + group * 32);
        const char* of_row = factors + group * 8;
        const float x[2] = {*reinterpret_cast<const float*>(of_row),
                            *reinterpret_cast<const float*>(of_row + row_bytes)};
        std::uint32_t q[3], a[4];
        w.levels(tile, odd, q);
        signed_levels_q6(q[0], q[1], q[2], a);
        int low[4], high[4];
        multiply_s8_k16(low, a[0], a[1], b.x, 0);
        multiply_s8_k16(high, a[2], a[3], b.y, 0);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int whole = signed_level(s, 2 * half) * low[2 * half + j] +
                              signed_level(s, 2 * half + 1) * high[2 * half + j];
            float& sum = sums.of[part][2 * half + j];
            sum = __fmaf_rn(q6_factor(w.super(0), half, x[j]), static_cast<float>(whole), sum);
          }
      }
    }
  }
}
template <BlockType kType>
__device__ __forceinline__ void dot_super(const RawSuper& raw, const char* rows, int row_bytes,
                                          int lane, EightSums& sums) {
  dot_parts<kType>(RawParts{raw, lane / 4}, rows, row_bytes, lane, sums);
}
template <bool kSix>
__device__ __forceinline__ void dot_either(BlockType type, const RawSuper& raw, const char* rows,
                                           int row_bytes, int lane, EightSums& sums) {
  if (!kSix || type == BlockType::Q4_K)
    dot_super<BlockType::Q4_K>(raw, rows, row_bytes, lane, sums);
  else
    dot_super<BlockType::Q6_K>(raw, rows, row_bytes, lane, sums);
}

}  // namespace tessera::gpu
