// The choice of experts from router logits, by one block: the semantics of route_row() on the CPU.
// Order is total: NaN counts as -inf, ties go to the lower id. One warp chooses;
// its lanes hold the experts in registers.
#pragma once

#include "device/gpu/kernels/input.cuh"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {

struct Selection {
  std::int32_t ids[kMaxUsed];
  float weights[kMaxUsed];
};

// Block-wide reductions in a fixed order; every thread gets the result.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) partial[warp] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) sum += partial[w];
  return sum;
}

// A float's bits as an unsigned number of the same order; no NaN.
__device__ __forceinline__ std::uint32_t ordered(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);  // -0 and 0 are one
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ std::uint32_t warp_greatest(std::uint32_t value) {
#ifdef TESSERA_GPU_PTX
  return __reduce_max_sync(0xffffffffu, value);
#else
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const std::uint32_t other = shuffle_xor(value, mask);
    value = other > value ? other : value;
  }
  return value;
#endif
}

// One warp's choice: expert i * 32 + lane is the lane's i-th.
template <int kEach>
__device__ void select_by_warp(const MoeArgs& moe, const float* logits, float factor,
                               Selection& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, n = moe.n_expert;
  float p[kEach], top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    float x = e < n ? logits[e] * factor : -INFINITY;
    x = isnan(x) ? -INFINITY : fminf(x, 3.402823466e38f);
    if (moe.router.logit_softcap > 0)
      x = moe.router.logit_softcap * tanhf(x / moe.router.logit_softcap);
    p[i] = x;
    if (e < n) top = fmaxf(top, x);
  }
  if (moe.router.gating == Gating::softmax) {
    top = warp_max(top);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool there = i * kWarp + lane < n && top > -INFINITY;
      p[i] = there ? expf(p[i] - top) : 0.0f;
      sum += p[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kEach; ++i) p[i] = sum > 0 ? p[i] / sum : 0.0f;
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) p[i] = sigmoid(p[i]);
  }
  std::uint32_t key[kEach];  // 0: chosen, or not there
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    float score = p[i];
    if (e < n && moe.router_bias != nullptr) score += moe.router_bias[e];
    key[i] = e < n ? ordered(isnan(score) ? -INFINITY : score) : 0;
  }
  float sum = 0;
  for (int slot = 0; slot < moe.n_used; ++slot) {
    std::uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) best = key[i] > best ? key[i] : best;
    best = warp_greatest(best);
    std::uint32_t id = 0;  // complement: the greatest is the lowest id
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i)
      if (key[i] == best) id = ~static_cast<std::uint32_t>(i * kWarp + lane);
    id = ~warp_greatest(id);
    float weight = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (static_cast<std::uint32_t>(i * kWarp + lane) == id) {
        weight = p[i];
        key[i] = 0;
      }
    weight = shuffle(weight, static_cast<int>(id % kWarp));
    sum += weight;
    if (lane == 0) {
      s.ids[slot] = static_cast<std::int32_t>(id);
      s.weights[slot] = weight;
    }
  }
  __syncwarp();
  const float scale =
      moe.router.weight_scale / (moe.router.normalize ? fmaxf(sum, 6.103515625e-5f) : 1.0f);
  if (lane < moe.n_used) {
    float w = s.weights[lane] * scale;
    if (moe.expert_scale != nullptr) w *= moe.expert_scale[s.ids[lane]];
    s.weights[lane] = w;
  }
}

// Fills s.ids and s.weights from one row's logits times `factor`. Ends with a barrier.
__device__ inline void select_experts(const MoeArgs& moe, const float* logits, float factor,
                                      Selection& s) {
  if (threadIdx.x < kWarp) {
    if (moe.n_expert <= 8 * kWarp)
      select_by_warp<8>(moe, logits, factor, s);
    else
      select_by_warp<kMaxExperts / kWarp>(moe, logits, factor, s);
  }
  __syncthreads();
}

}  // namespace tessera::gpu
