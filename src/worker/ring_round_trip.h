// How long a frame takes to a worker on this machine and an empty answer back, through the shared
// memory of a connection: between two threads, which spin, sleep and wake as two processes do, so
// that a worker need not run for it.
//
//   TESSERA_ASSIGN(const auto call, ring_round_trip(after(1s)));   // some microseconds
#pragma once

#include <chrono>

#include "base/result.h"
#include "worker/transport.h"

namespace tessera::worker {

// The median of several. `unavailable` where that takes longer than the deadline, and what making
// the memory says.
Result<std::chrono::nanoseconds> ring_round_trip(Deadline deadline);

}  // namespace tessera::worker
