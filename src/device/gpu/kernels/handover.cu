#include "device/gpu/kernels/handover.cuh"
#include "device/gpu/kernels/launch.h"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) hand_kernel(const HandoverArgs args) {
  chain_wait();
#ifdef TESSERA_GPU_PTX
  const auto i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < args.n)
    hand_value(reinterpret_cast<Handed*>(args.place) + i, args.hidden[i],
               static_cast<unsigned>(*args.step));
#endif
}

// What follows reads ahead while this one waits for the rows, but not before the step's inputs are
// there.
__global__ void __launch_bounds__(kThreads) take_kernel(const HandoverArgs args) {
  chain_wait();
  chain_trigger();
#ifdef TESSERA_GPU_PTX
  const auto i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < args.n)
    args.hidden[i] = take_value(reinterpret_cast<const Handed*>(args.place) + i,
                                static_cast<unsigned>(*args.step), args.most_ns);
#endif
}

GpuError launch_rows(const Launch& launch, void (*kernel)(HandoverArgs), const HandoverArgs& args) {
  const auto blocks = static_cast<unsigned>((args.n + kThreads - 1) / kThreads);
  return launch_kernel(launch, kernel, dim3(blocks), dim3(kThreads), 0, args);
}

}  // namespace

bool hands_over() {
#if defined(TESSERA_GPU_HIP) || defined(TESSERA_GPU_EMULATED)
  return false;
#else
  return true;
#endif
}

GpuError hand_rows(const Launch& launch, const HandoverArgs& args) {
  return launch_rows(launch, hand_kernel, args);
}

GpuError take_rows(const Launch& launch, const HandoverArgs& args) {
  return launch_rows(launch, take_kernel, args);
}

}  // namespace tessera::gpu
