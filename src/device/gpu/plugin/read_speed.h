// How fast a device reads its memory: the denominator of a benchmark.
#pragma once

namespace tessera::gpu {

// Bytes a second of a kernel that only reads, over a buffer far larger than any cache; the best of
// several runs. 0 where something failed.
double read_speed(int index);

}  // namespace tessera::gpu
