// The greatest logit of each row: the lower id wins a tie, NaN counts as -inf, ids that may not be
// chosen are passed over. Floor: one read of the logits, which the head has left in L2.
#include <algorithm>

#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/sizes.h"
#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = kArgmaxPieces;

struct Best {
  float value;
  std::int32_t id;
};

__device__ __forceinline__ Best better(Best a, Best b) {
  if (b.id < 0) return a;
  if (a.id < 0) return b;
  if (b.value > a.value || (b.value == a.value && b.id < a.id)) return b;
  return a;
}

// Every thread of the first warp gets the block's best.
__device__ Best block_best(Best best, Best* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int mask = kWarp / 2; mask > 0; mask /= 2)
    best = better(best, {shuffle_xor(best.value, mask), shuffle_xor(best.id, mask)});
  if (lane == 0) shared[warp] = best;
  __syncthreads();
  best = shared[lane % (kThreads / kWarp)];
  for (int mask = kThreads / kWarp / 2; mask > 0; mask /= 2)
    best = better(best, {shuffle_xor(best.value, mask), shuffle_xor(best.id, mask)});
  return best;
}

__device__ bool allowed(const ArgmaxArgs& args, std::int32_t id) {
  for (int i = 0; i < args.n_suppressed; ++i)
    if (args.suppressed[i] == id) return false;
  return true;
}

__global__ void __launch_bounds__(kThreads)
    pieces_kernel(const TESSERA_GRID_CONSTANT ArgmaxArgs args, Best* pieces) {
  __shared__ Best shared[kThreads / kWarp];
  chain_wait();
  chain_trigger();
  const float* row = args.logits + static_cast<std::int64_t>(blockIdx.y) * args.n_vocab;
  const int end = min(args.n_token, args.n_vocab);
  Best best{0, -1};
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < end;
       i += kBlocks * kThreads) {
    float value = row[i];
    if (isnan(value)) value = -INFINITY;
    if ((best.id < 0 || value > best.value) && allowed(args, i)) best = {value, i};
  }
  best = block_best(best, shared);
  if (threadIdx.x == 0) pieces[blockIdx.y * kBlocks + blockIdx.x] = best;
}

__global__ void __launch_bounds__(kThreads)
    final_kernel(const TESSERA_GRID_CONSTANT ArgmaxArgs args, const Best* pieces) {
  __shared__ Best shared[kThreads / kWarp];
  chain_wait();
  chain_trigger();
  Best best{0, -1};
  if (threadIdx.x < kBlocks) best = pieces[blockIdx.x * kBlocks + threadIdx.x];
  best = block_best(best, shared);
  if (threadIdx.x == 0) args.out[blockIdx.x] = best.id < 0 ? 0 : best.id;
}

}  // namespace

GpuError argmax(const Launch& launch, const ArgmaxArgs& args) {
  auto* pieces = static_cast<Best*>(launch.workspace);
  const auto rows = static_cast<unsigned>(args.rows);
  const GpuError error =
      launch_kernel(launch, pieces_kernel, dim3(kBlocks, rows), dim3(kThreads), 0, args, pieces);
  if (error != GpuError{}) return error;
  return launch_kernel(launch, final_kernel, dim3(rows), dim3(kThreads), 0, args, pieces);
}

}  // namespace tessera::gpu
