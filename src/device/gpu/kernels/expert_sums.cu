// Experts of rows that were normed elsewhere: what a worker of experts computes.
//
// Floor: of few rows the experts' bytes, as in ffn_output.cu; the sum reads n_used rows of f32 a
// row.
#include "device/gpu/kernels/ffn.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;

// A block a row. Slots of no weight may hold anything.
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const TESSERA_GRID_CONSTANT FfnArgs args, float* sums) {
  chain_wait();
  chain_trigger();
  const int n = args.n_embd, used = args.moe.n_used;
  const std::int64_t row = blockIdx.x;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += kThreads) {
    float sum = 0;
    for (int slot = 0; slot < used; ++slot) {
      const std::int64_t pair = row * used + slot;
      const float weight = args.moe.weights[pair];
      if (weight != 0.0f) sum = fmaf(args.pair_out[pair * n + c], weight, sum);
    }
    sums[row * n + c] = sum;
  }
}

}  // namespace

GpuError expert_sums(const Launch& launch, const FfnArgs& args, float* sums) {
  const GpuError error = ffn_branches(launch, args);
  if (error != GpuError{}) return error;
  return launch_kernel(launch, sum_kernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads),
                       0, args, sums);
}

}  // namespace tessera::gpu
