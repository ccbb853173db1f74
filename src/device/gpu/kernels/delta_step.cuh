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

}  // namespace tessera::gpu
