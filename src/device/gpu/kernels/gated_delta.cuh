// What the gated delta kernels share: where a sequence's state lies and the gates of a head.
#pragma once

#include "device/gpu/kernels/input.cuh"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {

inline constexpr float kL2Eps = 1e-6f;  // fixed by the architecture

struct DeltaShape {
  int channels, dim_k, dim_v, key_heads, value_heads, width;
  bool grouped;
};
__device__ __forceinline__ DeltaShape shape_of(const GatedDeltaSpec& s) {
  return {2 * s.n_key_head * s.dim_k + s.n_value_head * s.dim_v,
          s.dim_k,
          s.dim_v,
          s.n_key_head,
          s.n_value_head,
          s.conv_width,
          s.grouped_values};
}
__device__ __forceinline__ int key_head_of(const DeltaShape& s, int head) {
  return s.grouped ? head / (s.value_heads / s.key_heads) : head % s.key_heads;
}

// The convolution at channel c of row t of a sequence: taps over the rows before it, from the batch
// or, before its first row, from the ring.
__device__ __forceinline__ float convolved(const DeltaArgs& args, const DeltaShape& s,
                                           const Sequence& sequence, const float* ring, int t,
                                           int c) {
  float sum = 0;
  for (int j = 0; j < s.width; ++j) {
    const int row = t - s.width + 1 + j;
    const float x =
        row >= 0 ? args.qkv[static_cast<std::int64_t>(sequence.first_row + row) * s.channels + c]
                 : ring[(sequence.first_position + row + s.width) % s.width * s.channels + c];
    sum = fmaf(args.taps[j * s.channels + c], x, sum);
  }
  return silu(sum);
}

struct DeltaGates {
  float decay, beta;
};
__device__ __forceinline__ DeltaGates gates_of(float a, float bias, float alpha, float beta_logit) {
  return {expf(a * softplus(alpha + bias)), sigmoid(beta_logit)};
}
__device__ __forceinline__ DeltaGates gates_of(const DeltaArgs& args, const DeltaShape& s, int row,
                                               int head) {
  const std::int64_t at = static_cast<std::int64_t>(row) * s.value_heads + head;
  return gates_of(args.a[head], args.dt_bias[head], args.alpha[at], args.beta_logits[at]);
}

// The last rows of a sequence into its ring, by `parts` blocks of which this is number `part`.
__device__ __forceinline__ void update_ring(const DeltaArgs& args, const DeltaShape& s,
                                            const Sequence& sequence, float* ring, int part,
                                            int parts) {
  const int threads = static_cast<int>(blockDim.x);
  const int rows = min(sequence.n_rows, s.width);
  for (int i = part * threads + static_cast<int>(threadIdx.x); i < rows * s.channels;
       i += parts * threads) {
    const int row = sequence.n_rows - rows + i / s.channels;
    ring[(sequence.first_position + row) % s.width * s.channels + i % s.channels] =
        args.qkv[static_cast<std::int64_t>(sequence.first_row + row) * s.channels + i % s.channels];
  }
}

GpuError delta_convolve(const Launch& launch, const DeltaArgs& args, float* conv);
GpuError delta_recurrent(const Launch& launch, const DeltaArgs& args, const float* conv);
// Several sequences of one row, a block a head of 128 x 128: where smaller blocks would not all
// stand side by side and two of these do on a multiprocessor.
bool goes_by_heads(const Launch& launch, const GatedDeltaSpec& spec, const StepRows& step);
GpuError delta_heads(const Launch& launch, const DeltaArgs& args);
// `conv`: null where chunks_convolve(); `memory`: the workspace from delta_chunks_at() on.
GpuError delta_chunked(const Launch& launch, const DeltaArgs& args, const float* conv,
                       void* memory);

}  // namespace tessera::gpu
