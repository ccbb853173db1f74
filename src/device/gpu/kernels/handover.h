// Residual rows that a GPU hands to another one of the same process, for steps of few rows: each
// value is stored together with a number, in the receiver's memory, and who needs it looks until
// the number is there (run_values.cuh). So the receiving step waits on its queue already, with what
// it can read ahead on its way, and no event passes from queue to queue: some 12 us a crossing that
// way (docs/results-gpu.md, "Two GPUs in turns").
//
//   hand_rows(launch, {.hidden = x, .n = 2048, .place = there, .step = step});      // the first
//   take_rows(launch_2, {.hidden = x_2, .n = 2048, .place = here, .step = step_2});  // the second
//
// A run (run.h) does both itself. The number is that of the step, which both devices must count
// alike. A step may not hand rows before those of the step before were taken: where rows go
// ahead, it begins behind the tokens that came of them. What hands must be enqueued before what
// takes. A receiver that waits for longer than `most_ns` ends the program on its device with an
// error.
#pragma once

#include "device/gpu/kernels/kernels.h"

namespace tessera::gpu {

// Whether a GPU sees what another one writes to its memory while its kernels run.
bool hands_over();

// Of the place for `n` values; what is there at first is no number of a step.
constexpr std::int64_t handover_bytes(std::int64_t n) {
  return n * 2 * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

struct HandoverArgs {
  float* hidden = nullptr;
  std::int64_t n = 0;
  std::byte* place = nullptr;          // [n] {f32, number}
  const std::int32_t* step = nullptr;  // on this device
  std::int64_t most_ns = 0;            // that a row is waited for
};
GpuError hand_rows(const Launch& launch, const HandoverArgs& args);
GpuError take_rows(const Launch& launch, const HandoverArgs& args);

}  // namespace tessera::gpu
