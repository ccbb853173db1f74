// The part of CUDA's interface that the plug-in uses, over the emulator.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>

#include "tests/gpu/emulator/emulator.h"

// --- The language ---

#define TESSERA_GPU_EMULATED 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__  // also inside __attribute__((...)) of the library
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // blocks run one after the other
#define TESSERA_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::emulated::dynamic_shared())
#define __align__(n) __attribute__((aligned(n)))

using dim3 = emulated::Dim3;
extern dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the thread that runs

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

using std::isfinite;
using std::isnan;
using std::max;
using std::min;

inline void __syncthreads() {
  emulated::block_barrier();
}
inline void __syncwarp() {
  emulated::warp_barrier();
}
inline void __trap() {
  std::abort();
}
inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline void __threadfence_system() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
inline long long clock64() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

namespace emulated {
template <typename To, typename From>
To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
template <typename T>
T shuffle(T value, int from) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = exchange(bits, from);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
}  // namespace emulated

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulated::shuffle(value, lane & 31);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulated::shuffle(value, emulated::lane() ^ mask);
}

template <typename T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = before + value;
  return before;
}
template <typename T>
T __ldg(const T* at) {
  return *at;
}

inline int __dp4a(int a, int b, int sum) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    sum += static_cast<std::int8_t>(a >> (8 * i)) * static_cast<std::int8_t>(b >> (8 * i));
  return sum;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  unsigned out = 0;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    out |= static_cast<unsigned>(both >> (8 * ((select >> (4 * i)) & 7)) & 255) << (8 * i);
  return out;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
inline unsigned long long __float2ull_rn(float x) {
  return static_cast<unsigned long long>(std::nearbyint(x));
}
inline int __float_as_int(float x) {
  return emulated::as<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return emulated::as<unsigned>(x);
}
inline float __int_as_float(int x) {
  return emulated::as<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return emulated::as<float>(x);
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}

// --- The runtime ---

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMemoryClockRate,
  cudaDevAttrGlobalMemoryBusWidth,
};
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount, integrated;
};
struct CUstream_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = emulated::Event*;
using cudaGraph_t = emulated::Graph*;
using cudaGraphExec_t = emulated::Graph*;

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  int numAttrs;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int* version);
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaMallocBytes(void** data, std::size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** data, std::size_t bytes) {
  return cudaMallocBytes(reinterpret_cast<void**>(data), bytes);
}
cudaError_t cudaFree(void* data);
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
inline constexpr unsigned cudaHostRegisterDefault = 0;
cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* data);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void* data, int byte, std::size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* data, int byte, std::size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaMemcpyPeerAsync(void* to, int device, const void* from, int peer, std::size_t bytes,
                                cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

template <typename Function>
cudaError_t cudaFuncSetAttribute(Function, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename... Params>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               std::type_identity_t<Params>... args) {
  return static_cast<cudaError_t>(emulated::launch(
      reinterpret_cast<emulated::Stream*>(config->stream), config->gridDim, config->blockDim,
      config->dynamicSmemBytes, [kernel, args...] { kernel(args...); }));
}
