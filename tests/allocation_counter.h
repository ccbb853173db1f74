// How often this process has allocated memory, for tests that a path allocates none. Only of
// programs that are linked with allocation_counter.cc, which takes the place of operator new and of
// what AlignedBuffer calls.
#pragma once

#include <cstdint>

namespace tessera::testing {

std::int64_t allocations();

}  // namespace tessera::testing
