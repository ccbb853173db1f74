// Experts that cross the link ahead of their layer, beside the kernels of layers before.
//
// Floor: the link; 1.95 MB an expert are 36 us at 54 GB/s. What is under way stands before what the
// layer itself passes to the host and back, so it is as little as keeps the link busy: 48 GB/s and
// 2.5 us want 120 KB, here 64 blocks of 2 KB (docs/gpu.md, Experts foreseen). A warp a block and
// few registers, so that it stands beside whatever launches run on a multiprocessor.
#include "device/gpu/kernels/brought.cuh"

namespace tessera::gpu {
namespace {

constexpr int kBlocks = 64, kLoads = 4;
constexpr int kUnit = kWarp * kLoads;  // of 16 bytes

__global__ void __launch_bounds__(kWarp) bring_kernel(const TESSERA_GRID_CONSTANT BringArgs args) {
  __shared__ Foreseen foreseen;
  const int lane = static_cast<int>(threadIdx.x);
  foreseen.load(args.ids, args.rows * args.n_used, args.n_expert);
  __syncthreads();
  const auto sixteens = static_cast<int>(args.bytes / 16);
  int place = 0;
  for (int i = 0; i < foreseen.count && place < kBroughtPlaces; ++i) {
    if (!foreseen.first[i]) continue;
    const auto* from = reinterpret_cast<const uint4*>(args.linked[foreseen.ids[i] - args.n_expert]);
    auto* to = reinterpret_cast<uint4*>(args.to + place * args.bytes);
    ++place;
    for (int unit = static_cast<int>(blockIdx.x) * kUnit; unit < sixteens;
         unit += kBlocks * kUnit) {
      uint4 loaded[kLoads];
      const int at = unit + lane;
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
        if (at + j * kWarp < sixteens) loaded[j] = from[at + j * kWarp];
#pragma unroll
      for (int j = 0; j < kLoads; ++j)
        if (at + j * kWarp < sixteens) to[at + j * kWarp] = loaded[j];
    }
  }
}

}  // namespace

GpuError bring_experts(const Launch& launch, const BringArgs& args) {
  return launch_kernel(launch, bring_kernel, dim3(kBlocks), dim3(kWarp), 0, args);
}

}  // namespace tessera::gpu
