// Runs all blocks of a kernel and returns when the last has ended. Any thread; one kernel at a
// time.
#pragma once

#include "tests/gpu/emulator/emulator.h"

namespace emulated {

void run_kernel(Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

}  // namespace emulated
