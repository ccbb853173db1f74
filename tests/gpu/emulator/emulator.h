// A GPU that is none: runs the kernels of src/device/gpu on the processor, so that the plug-in and
// all above it are tested where no GPU is. It takes the place of the CUDA headers; kernels compile
// in their plain versions, as for AMD.
//
// A block's threads are fibers of one thread of the process: they stop at barriers and shuffles,
// and their order there is that of their numbers. Blocks run one after the other, of all devices
// together. Streams are threads with a queue, so copies and steps are as asynchronous as on a GPU.
// What is checked on the way: threads of a warp that wait at different barriers end the process.
//
// Not emulated: warps that diverge and meet again within a shuffle, caches, memory that a kernel
// must not see yet, and time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace emulated {

struct Stream;
struct Event;
struct Graph;

struct Dim3 {
  unsigned x, y, z;
  Dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}  // NOLINT
};

void block_barrier();
void warp_barrier();
// What the given lane of the warp gave.
std::uint64_t exchange(std::uint64_t value, int lane);
// The same of all lanes together, one after the other; valid until the third after it.
const void* gather(const void* own, std::size_t bytes);
int lane();
void* dynamic_shared();

// Enqueues a kernel; null is a stream that waits for its work. A cudaError_t.
int launch(Stream* stream, Dim3 grid, Dim3 block, std::size_t shared_bytes,
           std::function<void()> kernel);

}  // namespace emulated
