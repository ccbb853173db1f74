// What a shard allocates beside its device for experts that are away from it: the host executor and
// the dispatcher's rows and sums. 0 for a layout whose experts are all resident.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "model/model.h"

namespace tessera {

// Who computes them: the team of the shard's CPU device or, beside a GPU, threads of their own.
struct OffloadThreads {
  int threads = 1;
  bool own = false;
};
std::int64_t offload_bytes(const Model& model, const ShardLayout& layout, const OffloadThreads& by);

}  // namespace tessera
