// A layer's table of experts for those that lie in a group of places for a while.
// Floor: a launch; 2 KB are written.
#include "device/gpu/kernels/experts_away.h"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    table_kernel(const TESSERA_GRID_CONSTANT TableArgs args) {
  chain_wait();
  chain_trigger();
  for (int expert = static_cast<int>(threadIdx.x); expert < args.n_expert; expert += kThreads) {
    const std::byte* at = nullptr;
    for (int i = 0; i < args.n; ++i)
      if (args.experts[i] == expert) at = args.base + i * args.stride;
    args.table[expert] = at;
  }
}

}  // namespace

GpuError set_expert_table(const Launch& launch, const TableArgs& args) {
  return launch_kernel(launch, table_kernel, dim3(1), dim3(kThreads), 0, args);
}

}  // namespace tessera::gpu
