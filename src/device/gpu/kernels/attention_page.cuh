// A page's keys and values in registers of a block of eight warps, for one row's attention
// (attention_span.cuh): asked for ahead of what makes the row's own, which are put among them when
// they are there. Shapes: a page has kPageTokens tokens; `end`, `own` are numbers of its tokens.
//
//   PageKeys<kDim> keys;
//   keys.load({&page, place.k}, own, warp, lane);   // of the tokens before `own`
//   keys.put(key, own, warp, lane);                 // f32 in shared memory, normed and turned
//   score_eight<kDim>(queries, keys.of, heads, softcap, tokens, warp * 8, s);
#pragma once

#include "device/gpu/kernels/attention_span.cuh"

namespace tessera::gpu {

inline constexpr int kPageWarps = 8;
static_assert(kPageWarps * 8 == kPageTokens, "a warp has the keys of eight tokens");

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ std::uint32_t page_pair(const float* at) {
  return as_bits(__halves2half2(page_half(at[0]), page_half(at[1])));
}

// A warp's: of eight tokens, as score_eight() wants them.
template <int kDim>
struct PageKeys {
  uint4 of[kDim / 32];

  // Of the tokens before number `end`. Nothing else is there yet.
  __device__ __forceinline__ void load(const PageRows<kDim>& rows, int end, int warp, int lane) {
    const int token = warp * 8 + lane / 4, t = lane % 4;
    const auto* at = reinterpret_cast<const uint4*>(rows.page(0) + token * kDim + 8 * t);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i)
      of[i] = token < end ? rows.read(at + 4 * i) : uint4{0, 0, 0, 0};
  }
  __device__ __forceinline__ void put(const float* key, int own, int warp, int lane) {
    if (warp * 8 + lane / 4 != own) return;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      const float* at = key + 32 * i + 8 * (lane % 4);
      of[i] = {page_pair(at), page_pair(at + 2), page_pair(at + 4), page_pair(at + 6)};
    }
  }
};

// A warp's: of all tokens its columns, as ValueSum adds them.
template <int kDim>
struct PageValues {
  using Sum = ValueSum<kDim, kPageWarps>;
  Values<Sum::kN> of[4][4];

  __device__ __forceinline__ void load(const PageRows<kDim>& rows, int end, int lane) {
    const int t = lane % 4;
    const __half* value = rows.page(0) + 16 * t * kDim + Sum::first_column();
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Values<Sum::kN>& to = of[step][i];
        to = {};
        if (16 * t + 4 * step + i < end) to.load(rows, value + (4 * step + i) * kDim);
      }
  }
  __device__ __forceinline__ void put(const float* value, int own, int lane) {
    const float* at = value + Sum::first_column();
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (16 * (lane % 4) + 4 * step + i != own) continue;
        if constexpr (Sum::kN == 1) {
          of[step][i].words[0] = __half_as_ushort(page_half(*at));
        } else {
#pragma unroll
          for (int w = 0; w < Sum::kN / 2; ++w) of[step][i].words[w] = page_pair(at + 2 * w);
        }
      }
  }
};

#endif

}  // namespace tessera::gpu
