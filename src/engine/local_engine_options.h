// How much a LocalEngine takes on: checked against what there is, before it starts.
//
//   TESSERA_ASSIGN(const LocalEngineOptions resolved, resolved_options(options, pool, spec));
#pragma once

#include <chrono>

#include "base/result.h"
#include "model/spec.h"
#include "state/sequence_pool.h"

namespace tessera {

struct LocalEngineOptions {
  int parallel = 1;         // sequences that run at a time
  int max_queue = 64;       // requests that wait beside them
  int context = 0;          // most positions of one sequence; 0: what the pool and the model allow
  int prefill_chunk = 512;  // prompt rows in one step
  int max_rows = 512;       // the device layout's
  int max_logit_rows = 64;  // the device layout's
  // A step has rows of prompts or of sequences that decode, never both: for devices whose kernels
  // of few rows have other bits than those of many (docs/gpu.md), so that a token does not depend
  // on whether a prompt is read at the time.
  bool prompts_alone = false;
  // Requests wait at most so long at a time for a shard to change over (hold_back.h).
  std::chrono::milliseconds hold_back{10'000};
};

// With the context that it comes to. ErrorCode::invalid for what the pool or a step has no room
// for.
Result<LocalEngineOptions> resolved_options(const LocalEngineOptions& options,
                                            const SequencePool& pool, const ModelSpec& spec);

}  // namespace tessera
