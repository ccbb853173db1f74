// One head of one row by one warp: its norm and its rotation, as keys and queries have them.
// Element d of a head stands in lane d % 32.
#pragma once

#include "device/gpu/kernels/attention.cuh"

namespace tessera::gpu {

// A lane's part of the norm's weights, and its first turn.
template <int kEach>
struct HeadConstants {
  float weight[kEach], cos, sin;
};
// weight null: ones. `half`: pairs that are turned.
template <int kEach>
__device__ __forceinline__ HeadConstants<kEach> load_constants(const float* weight, int dims,
                                                               const float* cos, const float* sin,
                                                               int half, int lane) {
  HeadConstants<kEach> c;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int d = i * kWarp + lane;
    c.weight[i] = weight != nullptr && d < dims ? weight[d] : 1.0f;
  }
  c.cos = lane < half ? cos[lane] : 0.0f;
  c.sin = lane < half ? sin[lane] : 0.0f;
  return c;
}

// One of the two, in registers.
template <int kEach>
__device__ __forceinline__ HeadConstants<kEach> chosen(bool first, const HeadConstants<kEach>& a,
                                                       const HeadConstants<kEach>& b) {
  HeadConstants<kEach> c;
#pragma unroll
  for (int i = 0; i < kEach; ++i) c.weight[i] = first ? a.weight[i] : b.weight[i];
  c.cos = first ? a.cos : b.cos;
  c.sin = first ? a.sin : b.sin;
  return c;
}

// values[d] = norm(x)[d]; x past `dims` is zero. Ends with the warp in step.
template <int kEach>
__device__ __forceinline__ void put_head(const float (&x)[kEach], const HeadConstants<kEach>& c,
                                         bool norm, int dims, float eps, int lane, float* values) {
  float factor = 1.0f;
  if (norm) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum = fmaf(x[i], x[i], sum);
    factor = inverse_root(warp_sum(sum) / static_cast<float>(dims) + eps);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (i * kWarp + lane < dims)
      values[i * kWarp + lane] = norm ? x[i] * factor * c.weight[i] : x[i];
  __syncwarp();
}

// Elements i and i + half by the angle whose cosine and sine these are.
__device__ __forceinline__ void turn_pair(float* values, int i, int half, float cos, float sin) {
  const float a = values[i], b = values[i + half];
  values[i] = __fmaf_rn(a, cos, -__fmul_rn(b, sin));
  values[i + half] = __fmaf_rn(b, cos, __fmul_rn(a, sin));
}

template <int kEach>
__device__ __forceinline__ void load_head(const float* x, int dims, int lane, float (&to)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[i] = i * kWarp + lane < dims ? x[i * kWarp + lane] : 0.0f;
}
// values[d] = norm(x)[d], turned where asked. All by one warp; ends with the warp in step.
template <int kEach>
__device__ __forceinline__ void norm_and_turn(const AttentionArgs& args, int row,
                                              const float (&x)[kEach],
                                              const HeadConstants<kEach>& early, bool norm,
                                              bool turn, int dims, float* values) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  put_head<kEach>(x, early, norm, dims, args.eps, lane, values);
  if (!turn) return;
  const int half = args.n_rot / 2;
  for (int i = lane; i < half; i += kWarp) {
    const float c = i == lane ? early.cos : args.cos[row * half + i];
    const float s = i == lane ? early.sin : args.sin[row * half + i];
    turn_pair(values, i, half, c, s);
  }
  __syncwarp();
}

// As a page keeps it. An infinity would make NaN of the zero weight that other rows give it.
__device__ __forceinline__ __half page_half(float x) {
  return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}

}  // namespace tessera::gpu
