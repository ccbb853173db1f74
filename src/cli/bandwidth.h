// What this machine can do at most: the denominators of a benchmark.
//
// Reading is measured with all threads of the team, and with one alone, over a buffer that the
// caches are emptied of, or that none holds where a program cannot do that, several passes, and the
// best counts. Arithmetic is measured on one thread in registers; a team of n does at most n times
// as much.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/thread_team.h"
#include "device/cpu/isa.h"

namespace tessera::cli {

struct MachineSpeed {
  double read_bytes_per_s = 0.0;         // all threads together
  double thread_read_bytes_per_s = 0.0;  // one alone; 0: not measured
  double f32_flop_per_s = 0.0;           // one thread; a fused multiply-add is 2
  double int8_op_per_s = 0.0;            // one thread; a multiply and an add are 2; 0: not measured
};

// Takes less than a second and 8 MiB a thread for a while, or `memory` where that is less, but what
// look_at_machine() takes at least. Where the caches cannot be emptied: `memory`, or 1 GiB.
Result<MachineSpeed> measure_machine(ThreadTeam& team, cpu::Isa isa, std::int64_t memory);

// The same, good enough to decide by. Takes a few hundredths of a second and 8 MiB, or 1 MiB a
// thread; where the caches cannot be emptied a quarter of `memory`, or 256 MiB.
Result<MachineSpeed> look_at_machine(ThreadTeam& team, cpu::Isa isa, std::int64_t memory);

}  // namespace tessera::cli
