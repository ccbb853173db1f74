// What a shard allocates beside its device for experts that are away from it: the host executor and
// the dispatcher's rows and sums. 0 for a layout whose experts are all resident.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "model/model.h"

namespace tessera {

// `team_threads`: of the CPU device whose team the host executor shares; 0: it has its own.
std::int64_t offload_bytes(const Model& model, const ShardLayout& layout, int team_threads);

}  // namespace tessera
