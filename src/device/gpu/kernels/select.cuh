// The choice of experts from router logits, by one block: the semantics of route_row() on the CPU.
// Order is total: NaN counts as -inf, ties go to the lower id. Every expert counts who stands
// before it, first among 32, then among the best of each 32: no step waits for another but at two
// barriers.
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

// What few models or few threads go through is called, not copied into each kernel and loop: a
// kernel of a token runs every instruction once, so that its time is also that of fetching them.
static __device__ __noinline__ float soft_capped(float x, float cap) {
  return cap * tanhf(x / cap);
}

// NaN is last, and what is infinite can be subtracted.
__device__ __forceinline__ float usable_logit(float x) {
  return isnan(x) ? -INFINITY : fminf(x, 3.402823466e38f);
}
// A chosen expert's weight, `sum` that of all that were chosen.
__device__ __forceinline__ float scaled_weight(float weight, float sum, float scale,
                                               bool normalize) {
  return weight * (scale / (normalize ? fmaxf(sum, 6.103515625e-5f) : 1.0f));
}

// An expert's logit as the gate sees it; -inf past the last expert.
__device__ __forceinline__ float router_logit(const MoeArgs& moe, const float* logits, float factor,
                                              int e) {
  if (e >= moe.n_expert) return -INFINITY;
  const float x = usable_logit(logits[e] * factor);
  const float cap = moe.router.logit_softcap;
  return cap > 0 ? soft_capped(x, cap) : x;
}

// What a softmax over all experts needs: every lane gets it.
struct SoftmaxBase {
  float top = -INFINITY, sum = 0;
  __device__ __forceinline__ float of(float x) const {
    return sum > 0 ? expf(x - top) / sum : 0.0f;
  }
};
// By each warp for itself.
static __device__ __noinline__ SoftmaxBase softmax_base(const MoeArgs& moe, const float* logits,
                                                        float factor) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  SoftmaxBase base;
#pragma unroll 8
  for (int e = lane; e < moe.n_expert; e += kWarp)
    base.top = fmaxf(base.top, router_logit(moe, logits, factor, e));
  base.top = warp_max(base.top);
  if (base.top == -INFINITY) return base;
#pragma unroll 8
  for (int e = lane; e < moe.n_expert; e += kWarp)
    base.sum += expf(router_logit(moe, logits, factor, e) - base.top);
  base.sum = warp_sum(base.sum);
  return base;
}

// What a block shares while it chooses: the order of every expert's score, then the best of each 32
// experts.
struct Candidates {
  alignas(16) std::uint32_t keys[kMaxExperts];  // 0: not there
  alignas(16) std::uint32_t best[kMaxExperts + 4];
  std::int32_t ids[kMaxExperts];
};

// How many of the keys [begin, end) stand before that of index i: greater ones, and equal ones
// ahead of it. `begin` is a multiple of 4; behind the last key stand zeros.
__device__ __forceinline__ int rank_of(const std::uint32_t* keys, int begin, int end, int i,
                                       std::uint32_t key) {
  int rank = 0;
#pragma unroll 4
  for (int j = begin; j < end; j += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(keys + j);
    rank += four.x > key - (j < i ? 1 : 0);
    rank += four.y > key - (j + 1 < i ? 1 : 0);
    rank += four.z > key - (j + 2 < i ? 1 : 0);
    rank += four.w > key - (j + 3 < i ? 1 : 0);
  }
  return rank;
}

// First half of the choice: each warp ranks groups of 32 experts and leaves the best of them in
// c.best. Wants a barrier behind it. A softmax without bias is chosen from by its logits, whose
// order is the same.
__device__ inline void rank_groups(const MoeArgs& moe, const float* logits, float factor,
                                   Candidates& c) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, n = moe.n_expert;
  const bool softmax = moe.router.gating == Gating::softmax;
  SoftmaxBase base;
  if (softmax && moe.router_bias != nullptr) base = softmax_base(moe, logits, factor);
  const int each = min(moe.n_used, kWarp);
  if (threadIdx.x < 4) c.best[(n + kWarp - 1) / kWarp * each + static_cast<int>(threadIdx.x)] = 0;
  for (int e = static_cast<int>(threadIdx.x); e < (n + kWarp - 1) / kWarp * kWarp;
       e += static_cast<int>(blockDim.x)) {
    std::uint32_t key = 0;
    if (e < n) {
      float score = router_logit(moe, logits, factor, e);
      if (!softmax) score = sigmoid(score);
      if (moe.router_bias != nullptr)
        score = (softmax ? base.of(score) : score) + moe.router_bias[e];
      key = ordered(isnan(score) ? -INFINITY : score);
    }
    c.keys[e] = key;
    __syncwarp();
    const int group = e / kWarp;
    const int rank = key == 0 ? kWarp : rank_of(c.keys + group * kWarp, 0, kWarp, lane, key);
    if (lane < each) c.best[group * each + lane] = 0;
    __syncwarp();
    if (rank < each) {
      c.best[group * each + rank] = key;
      c.ids[group * each + rank] = e;
    }
  }
}

// Second half, after the barrier: s.ids. Wants another. Four lanes a candidate, a quarter of the
// others each: the whole block waits for this.
__device__ inline void choose_ranked(const MoeArgs& moe, const Candidates& c, Selection& s) {
  const int each = min(moe.n_used, kWarp), n = (moe.n_expert + kWarp - 1) / kWarp * each;
  const int share = (n + 15) / 16 * 4, begin = static_cast<int>(threadIdx.x) % 4 * share;
  const int end = min(n, begin + share);
  for (int base = 0; base < n; base += static_cast<int>(blockDim.x) / 4) {
    const int i = base + static_cast<int>(threadIdx.x) / 4;
    const std::uint32_t key = i < n ? c.best[i] : 0;
    int rank = rank_of(c.best, begin, end, i, key);
    rank += shuffle_xor(rank, 1);
    rank += shuffle_xor(rank, 2);
    if (key != 0 && rank < moe.n_used && threadIdx.x % 4 == 0) s.ids[rank] = c.ids[i];
  }
}

// The weights of s.ids, by one warp.
__device__ inline void weigh_experts(const MoeArgs& moe, const float* logits, float factor,
                                     Selection& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool mine = lane < moe.n_used;
  const float own = router_logit(moe, logits, factor, mine ? s.ids[lane] : moe.n_expert);
  float weight = 0;
  if (moe.router.gating == Gating::softmax) {
    const SoftmaxBase base = softmax_base(moe, logits, factor);
    weight = mine ? base.of(own) : 0.0f;
  } else {
    weight = mine ? sigmoid(own) : 0.0f;
  }
  const float sum = warp_sum(weight);
  weight = scaled_weight(weight, sum, moe.router.weight_scale, moe.router.normalize);
  if (mine && moe.expert_scale != nullptr) weight *= moe.expert_scale[s.ids[lane]];
  if (mine) s.weights[lane] = weight;
}

// Fills s.ids and s.weights from one row's logits times `factor`. Ends with a barrier.
__device__ inline void select_experts(const MoeArgs& moe, const float* logits, float factor,
                                      Selection& s) {
  __shared__ Candidates candidates;
  rank_groups(moe, logits, factor, candidates);
  __syncthreads();
  choose_ranked(moe, candidates, s);
  __syncthreads();
  if (threadIdx.x < kWarp) weigh_experts(moe, logits, factor, s);
  __syncthreads();
}

}  // namespace tessera::gpu
