// The state of half a head, which eight warps have in registers, and the log of steps that the one
// in memory lacks (dense_run.h).
#pragma once

#include "device/gpu/kernels/delta_step.cuh"
#include "device/gpu/kernels/dense_run_plan.h"
#include "device/gpu/kernels/shared_memory.cuh"

namespace tessera::gpu::dense_run {

inline constexpr int kRounds = kHalf / kRowWarps / kColumns;  // of a warp's columns

// The head of whose columns the block has a half.
__device__ __forceinline__ int head_of_block() {
  return static_cast<int>(blockIdx.x) / 2;
}
struct HalfHead {
  int head, key_head, column;
  bool writes_keys;
  __device__ __forceinline__ explicit HalfHead(const Layer& l)
      : head(head_of_block()), column(static_cast<int>(blockIdx.x) % 2 * kHalf) {
    const int per_key = l.heads / l.key_heads;
    key_head = l.grouped != 0 ? head / per_key : head % l.key_heads;
    const int first = l.grouped != 0 ? key_head * per_key : key_head;
    writes_keys = column == 0 && head == first;
  }
};
__device__ __forceinline__ Log* log_of(const Layer& l, Log* logs) {
  return logs == nullptr ? nullptr : logs + l.log * kBlocks + blockIdx.x;
}
// The block's columns, behind the ring of the convolution's inputs.
__device__ __forceinline__ float* state_of(const Layer& l, int slot) {
  const HalfHead at(l);
  return l.state + slot * l.slot_stride + kTaps * l.channels + (at.head * kDim + at.column) * kDim;
}

// A lane's part of a warp's eight columns.
struct State {
  float S[kRounds][kColumns][kParts];

  __device__ __forceinline__ State(const float* from, int warp, int lane) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        load_column<kParts>(from + ((warp * kRounds + r) * kColumns + j) * kDim, kDim, lane,
                            S[r][j]);
  }
  __device__ __forceinline__ void store(float* to, int warp, int lane) const {
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        store_once(to + ((warp * kRounds + r) * kColumns + j) * kDim + kParts * lane,
                   make_float4(S[r][j][0], S[r][j][1], S[r][j][2], S[r][j][3]));
  }
  // One that stands in the log.
  __device__ __forceinline__ void step_again(const LoggedStep& step, int warp, int lane) {
    float keys[kParts];
    load_column<kParts>(step.keys, kDim, lane, keys);
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
      gpu::step_again(S[r], keys, step.decay,
                      step.delta[(warp * kRounds + r) * kColumns + lane / kColumnLanes]);
  }
};

}  // namespace tessera::gpu::dense_run
