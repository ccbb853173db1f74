// The types of a launch function's signature without any driver's header, so that the planner can
// use the pure functions beside them (workspace and page sizes, what is supported).
#pragma once

struct CUstream_st;
struct ihipStream_t;

namespace tessera::gpu {

#if defined(TESSERA_HIP)
using GpuStream = ihipStream_t*;  // hipStream_t
#else
using GpuStream = CUstream_st*;  // cudaStream_t
#endif
using GpuError = int;  // cudaError_t or hipError_t; 0: success

}  // namespace tessera::gpu
