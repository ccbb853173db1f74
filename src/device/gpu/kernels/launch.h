// How a kernel of this folder is launched: chained (programmatic dependent launch) where asked and
// possible.
#pragma once

#include <utility>

#include "device/gpu/kernels/kernels.h"
#include "device/gpu/kernels/portable.h"

namespace tessera::gpu {

// Bytes of shared memory that a block of the current device may ask for.
inline std::size_t shared_limit() {
  int device = 0, bytes = 0;
#ifdef TESSERA_GPU_HIP
  if (hipGetDevice(&device) != hipSuccess) return 0;
  (void)hipDeviceGetAttribute(&bytes, hipDeviceAttributeMaxSharedMemoryPerBlock, device);
#else
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
#endif
  return static_cast<std::size_t>(bytes);
}

inline std::size_t shared_limit(const Launch& launch) {
  return launch.shared_bytes > 0 ? launch.shared_bytes : shared_limit();
}

// The major number of the current device's compute capability; 0 where there is none.
inline int compute_major() {
  int major = 0;
#ifndef TESSERA_GPU_HIP
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
#endif
  return major;
}

// At most `most` blocks (of those that stand side by side) for `units` of work, so that each takes
// the same number one after another.
inline int even_blocks(int units, int most) {
  const int rounds = (units + most - 1) / most;
  return (units + rounds - 1) / rounds;
}

template <typename... Params, typename... Args>
GpuError launch_kernel(const Launch& launch, void (*kernel)(Params...), dim3 grid, dim3 block,
                       std::size_t shared, Args&&... args) {
#ifdef TESSERA_GPU_HIP
  (void)hipGetLastError();  // an earlier call's, which was told where it was made
  kernel<<<grid, block, shared, launch.stream>>>(Params(args)...);
  return hipGetLastError();
#else
  // More than 48 KB must be asked for, once a kernel; asking is cheap and idempotent.
  if (shared > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = launch.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = launch.chained ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
#endif
}

}  // namespace tessera::gpu
