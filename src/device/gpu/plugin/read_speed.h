// How fast a device reads its memory: the denominator of a benchmark.
#pragma once

#include <cstddef>

#include "device/gpu/kernels/launch_types.h"

namespace tessera::gpu {

// Bytes a second of a kernel that only reads, over a buffer far larger than any cache; the best of
// several runs. 0 where something failed, or did not end within a minute.
double read_speed(int index);

// One run of that kernel.
GpuError enqueue_read(std::byte* data, std::size_t bytes, int blocks, GpuStream stream);

}  // namespace tessera::gpu
