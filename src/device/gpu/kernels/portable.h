// The one place that knows which vendor's compiler this is: CUDA or HIP.
//
// Kernels use the names below; inline PTX stands only where TESSERA_GPU_PTX is defined, always with
// a plain version beside it.
#pragma once

#include "device/gpu/kernels/launch_types.h"

#if defined(TESSERA_HIP)
#define TESSERA_GPU_HIP 1
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#define TESSERA_GPU_API(name) hip##name
#if defined(__HIPCC__)
// The lanes of a wavefront run in step; what they wrote must be seen.
__device__ inline void __syncwarp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
#endif
#define TESSERA_GRID_CONSTANT
#else
#define TESSERA_GPU_CUDA 1
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define TESSERA_GPU_API(name) cuda##name
#define TESSERA_GRID_CONSTANT __grid_constant__
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define TESSERA_GPU_PTX 1
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TESSERA_GPU_SM90 1
#endif
#endif

// Blocks that start together, next to one another, and reach each other's shared memory.
#ifdef TESSERA_GPU_SM90
#define TESSERA_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define TESSERA_CLUSTER(blocks)
#endif

// A block's shared memory of the size that the launch asks for.
#ifndef TESSERA_DYNAMIC_SHARED
#define TESSERA_DYNAMIC_SHARED(type, name) extern __shared__ __align__(128) type name[]
#endif
