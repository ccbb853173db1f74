// What tessera bench measured of this machine, kept in the user's cache for plans made later.
//
// A measurement counts for the same processor, number of threads and instruction set only.
#pragma once

#include <optional>

#include "cli/bandwidth.h"
#include "device/cpu/isa.h"
#include "plan/prediction.h"

namespace tessera::cli {

// The speed of `threads` threads together.
MeasuredSpeed measured_speed(const MachineSpeed& speed, int threads);

// Best effort: a cache that cannot be written or read is one that is not there.
void save_speed(const MeasuredSpeed& speed, int threads, cpu::Isa isa);
std::optional<MeasuredSpeed> saved_speed(int threads, cpu::Isa isa);

}  // namespace tessera::cli
