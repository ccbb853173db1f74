// StepInputs: a batch as the kernels read it, on its way to device memory.
//
//   TESSERA_TRY(inputs.send(batch, shape, scratch, launch));
//
// What is sent lies in one of a few pinned blocks in turn, so that a batch may be prepared while
// the one before it is still under way.
#pragma once

#include <array>

#include "device/gpu/gpu_layout.h"
#include "device/gpu/plugin/driver.h"
#include "device/gpu/plugin/gpu_step.h"

namespace tessera::gpu {

class StepInputs {
 public:
  // `block_bytes`: GpuStaging::inputs.
  static Result<StepInputs> create(std::int64_t block_bytes, double wait_seconds);

  // Waits while all blocks are under way, as parts of a long prompt may be; fails when that takes
  // longer than a step may.
  Status send(const BatchView& batch, const StepShape& shape, const Scratch& scratch,
              const Launch& launch);
  // The number of the last one sent, from 1 on; odd and even ones take turns, always.
  std::int32_t step() const { return step_; }

 private:
  struct Block {
    PinnedBuffer memory;
    Event done;  // the step that it was for: recorded by the next send()
  };

  Status send_changes(const TokenChoices& choices, const Scratch& scratch, GpuStream stream,
                      LogitChange* staged);

  double wait_seconds_ = 0;
  std::array<Block, kInputBlocks> blocks_;
  std::size_t last_ = 0;  // the last one's block
  std::int32_t step_ = 0;
};

// Where log probabilities are wanted, or more changes than there is room for; else the card does,
// whatever the logits are.
bool host_chooses(const TokenChoice& choice);

// What the launches of a batch depend on: its sizes, and who chooses its tokens. Contexts are
// rounded up to a power of two, so that a growing sequence seldom makes a new shape.
StepShape shape_of(const BatchView& batch, std::int64_t longest_context);

}  // namespace tessera::gpu
