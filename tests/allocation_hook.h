// Memory of this process under a test's eye: how often it is allocated, and allocations that fail
// on purpose.
//
//   const std::int64_t before = allocations();
//   fail_allocation(3);                      // the fourth from here on, on any thread
//   const Status made = make();
//   const bool failed = stop_failing();      // whether there was a fourth one
//
// Only of programs that are linked with allocation_hook.cc, which takes the place of operator new,
// of what AlignedBuffer calls, and of mmap where memory is shared with other processes.
#pragma once

#include <cstdint>

namespace tessera::testing {

std::int64_t allocations();

void fail_allocation(int n);
bool stop_failing();

// Of the calling thread nothing fails, nor uses up the number.
void spare_this_thread(bool spared);

}  // namespace tessera::testing
