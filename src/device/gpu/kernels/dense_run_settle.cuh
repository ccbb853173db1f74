// States that a log has steps for (dense_run.h) written as they would be without one: half a head a
// block.
#pragma once

#include "device/gpu/kernels/dense_run_log.cuh"

namespace tessera::gpu::dense_run {
namespace {

// The first `n` of the block's steps.
__device__ __forceinline__ void bring_log(const Log* log, int n, LoggedStep* to) {
  const auto* from = reinterpret_cast<const float4*>(log);
  static_assert(sizeof(LoggedStep) % sizeof(float4) == 0);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x);
       i < n * static_cast<int>(sizeof(LoggedStep) / sizeof(float4)); i += kRowWarps * kWarp)
    reinterpret_cast<float4*>(to)[i] = from[i];
}

__global__ void __launch_bounds__(kRowWarps* kWarp)
    settle_kernel(const Layer* layers, Log* logs, int slot) {
  __shared__ LoggedStep again[kMostLogged];
  const int place = static_cast<int>(blockIdx.y);
  const Layer& l = layers[place];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  chain_wait();
  if (l.state == nullptr || head_of_block() >= l.heads) return;  // it attends, or is not here
  Log* log = log_of(l, logs);
  const int n = log->n;
  if (n == 0) return;
  float* at = state_of(l, slot);
  State state(at, warp, lane);
  bring_log(log, n, again);
  __syncthreads();
#pragma unroll 1
  for (int step = 0; step < n; ++step) state.step_again(again[step], warp, lane);
  state.store(at, warp, lane);
  if (threadIdx.x == 0) log->n = 0;
}

}  // namespace
}  // namespace tessera::gpu::dense_run
