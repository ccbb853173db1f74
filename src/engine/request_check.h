// What a request must be so that it can run: parameters, prompt and stop strings, against what the
// model and its context allow.
//
//   TESSERA_ASSIGN(Submission submission, checked(std::move(request), {.context = 4096, ...}));
//
// ErrorCode::invalid in one line that names the field, the value and the range. Pure, any thread.
#pragma once

#include "base/result.h"
#include "engine/generation.h"

namespace tessera {

struct RequestBounds {
  int context = 0;  // most positions of one sequence
  int n_token = 0;  // tokens of the vocabulary
};

// Without id, sink and seed, which are the engine's to give.
Result<Submission> checked(GenerationRequest request, const RequestBounds& bounds);

}  // namespace tessera
