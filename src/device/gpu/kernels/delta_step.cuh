// What the kernels of the delta rule for sequences of one row share: a block's place, the lanes'
// shares of a column of S, what is loaded ahead of its use.
#pragma once

#include "device/gpu/kernels/gated_delta.cuh"

namespace tessera::gpu {

inline constexpr int kColumns = 4;     // of S that a warp steps at a time
inline constexpr int kEarlyWidth = 4;  // of a convolution whose inputs are loaded early

// Of a decode block: its head and columns, and which row of the ring the step's inputs go to. Made
// once: divisions are dear.
struct BlockPlace {
  int head, key_head, column;  // the block's first column
  int newest;                  // row of the ring
  bool writes_keys;            // the first block of the first value head that reads its key head
};
__device__ __forceinline__ BlockPlace block_place(const DeltaShape& s, const Sequence& sequence,
                                                  int head, int column) {
  const int key_head = key_head_of(s, head);
  const int first = s.grouped ? key_head * (s.value_heads / s.key_heads) : key_head;
  return {head, key_head, column, sequence.first_position % s.width, column == 0 && head == first};
}

// Called, not copied: few instructions to fetch (select.cuh).
static __device__ __noinline__ float silu_called(float x) {
  return silu(x);
}

// What decides on a head's gates: loaded before they are needed.
struct GateInputs {
  float alpha, beta;
};
__device__ __forceinline__ GateInputs load_gates(const DeltaArgs& args, const DeltaShape& s,
                                                 int row, int head) {
  const std::int64_t at = static_cast<std::int64_t>(row) * s.value_heads + head;
  return {args.alpha[at], args.beta_logits[at]};
}

// A lane's elements of a column of dim_k: four neighbours of every 128 where it has so many.
template <int kParts>
__device__ __forceinline__ void load_column(const float* from, int dim_k, int lane,
                                            float (&to)[kParts]) {
  if constexpr (kParts % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kParts; i += 4) {
      const int d = i * kWarp + 4 * lane;
      const float4 v = d < dim_k ? *reinterpret_cast<const float4*>(from + d) : float4{0, 0, 0, 0};
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      to[i] = i * kWarp + lane < dim_k ? from[i * kWarp + lane] : 0.0f;
  }
}
template <int kParts>
__device__ __forceinline__ void store_column(float* to, int dim_k, int lane,
                                             const float (&from)[kParts]) {
  if constexpr (kParts % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kParts; i += 4) {
      const int d = i * kWarp + 4 * lane;
      if (d < dim_k)
        *reinterpret_cast<float4*>(to + d) =
            make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (i * kWarp + lane < dim_k) to[i * kWarp + lane] = from[i];
  }
}

// --- Heads of 128 x 128 ---

inline constexpr int kHead = 128;  // dim_k and dim_v
inline constexpr int kParts = kHead / kWarp;
static_assert(kParts == 4);

// A lane's parts of q and k, both of length 1 but for q's scale.
struct Keys {
  float q[kParts], k[kParts];
};
// Of convolved values in shared memory.
__device__ __forceinline__ Keys load_keys(const float* q, const float* k, int lane) {
  Keys keys;
  float qq = 0, kk = 0;
  load_column<kParts>(q, kHead, lane, keys.q);
  load_column<kParts>(k, kHead, lane, keys.k);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    qq = fmaf(keys.q[i], keys.q[i], qq);
    kk = fmaf(keys.k[i], keys.k[i], kk);
  }
  const float q_scale = 1.0f / sqrtf(static_cast<float>(kHead));
  const float q_factor = q_scale * inverse_root(warp_sum(qq) + kL2Eps);
  const float k_factor = inverse_root(warp_sum(kk) + kL2Eps);
#pragma unroll
  for (int i = 0; i < kParts; ++i) keys.q[i] *= q_factor, keys.k[i] *= k_factor;
  return keys;
}

// Lanes that have a column's sums in common, where a warp steps kColumns.
inline constexpr int kColumnLanes = kWarp / kColumns;

// Steps columns of S; `v`: of column lane / kColumnLanes, of which q's product with it is returned.
// `own`: what the keys were added to that column with.
__device__ __forceinline__ float stepped(float (&S)[kColumns][kParts], const Keys& keys,
                                         const DeltaGates& gates, float v, int lane, float& own) {
  float read[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    read[j] = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) read[j] = fmaf(S[j][i], keys.k[i], read[j]);
  }
  // A lane makes one column's delta, for all lanes.
  own = gates.beta * (v - gates.decay * spread_sums(read, lane));
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const float delta = shuffle(own, j * kColumnLanes);
    read[j] = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      S[j][i] = fmaf(keys.k[i], delta, S[j][i] * gates.decay);
      read[j] = fmaf(S[j][i], keys.q[i], read[j]);
    }
  }
  return spread_sums(read, lane);
}
__device__ __forceinline__ float stepped(float (&S)[kColumns][kParts], const Keys& keys,
                                         const DeltaGates& gates, float v, int lane) {
  float own;
  return stepped(S, keys, gates, v, lane, own);
}
// The same step once more, of which nothing is returned.
__device__ __forceinline__ void step_again(float (&S)[kColumns][kParts],
                                           const float (&keys)[kParts], float decay, float own) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const float delta = shuffle(own, j * kColumnLanes);
#pragma unroll
    for (int i = 0; i < kParts; ++i) S[j][i] = fmaf(keys[i], delta, S[j][i] * decay);
  }
}

}  // namespace tessera::gpu
