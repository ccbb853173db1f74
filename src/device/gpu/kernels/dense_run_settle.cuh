// States that a log has steps for (dense_run.h) written as they would be without one: half a head a
// block.
#pragma once

#include "device/gpu/kernels/dense_run_log.cuh"

namespace tessera::gpu::dense_run {
namespace {

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
