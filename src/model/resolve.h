// The resolver: matches what a family expects with what a file holds.
//
// On success there is one slice per expectation, sorted by (layer, role). On failure there is one
// error that counts and names everything that is missing or has the wrong shape (as many as fit a
// readable line). A tensor that carries a separate scale which nothing would apply is refused too:
// ignoring it would give wrong numbers silently.
#pragma once

#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "model/family.h"
#include "model/model.h"

namespace tessera {

struct ResolvedTensors {
  std::vector<TensorSlice> slices;
  int ignored = 0;  // tensors of the file that no slice uses
};

Result<ResolvedTensors> resolve_tensors(const gguf::File& file,
                                        const std::vector<ExpectedTensor>& expected);

}  // namespace tessera
