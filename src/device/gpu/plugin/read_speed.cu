#include "device/gpu/plugin/read_speed.h"

#include <cstddef>

#include "device/gpu/kernels/launch.h"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 8;

__global__ void __launch_bounds__(kThreads)
    read_all(const uint4* data, std::size_t count, unsigned* out) {
  unsigned sum = 0;
  const std::size_t step = std::size_t{gridDim.x} * kThreads * kUnroll;
  for (std::size_t at = std::size_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x;
       at + (kUnroll - 1) * kThreads < count; at += step) {
    uint4 values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) values[i] = data[at + i * kThreads];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) sum += values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  }
  // Never true for the zeros that are read; without it nothing would be read.
  if (sum == 0x12345678u) *out = sum;
}

}  // namespace

GpuError enqueue_read(std::byte* data, std::size_t bytes, int blocks, GpuStream stream) {
  return launch_kernel(Launch{.stream = stream}, read_all, dim3(static_cast<unsigned>(blocks)),
                       dim3(kThreads), 0, reinterpret_cast<const uint4*>(data),
                       bytes / sizeof(uint4), reinterpret_cast<unsigned*>(data));
}

}  // namespace tessera::gpu
