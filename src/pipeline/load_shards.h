// load_shards: loads all shards of a plan. Those of this process load at the same time, each in a
// thread of its own; those of workers have been loading since they were made, and are waited for
// after that.
//
//   TESSERA_TRY(load_shards(model, plan, shards, progress));
//
// Returns when no shard loads any more; after a failure the others soon do not. Where several fail
// the error is that of the first in the plan's order, with its device; workers are then not waited
// for. `progress` is told bytes of the plan, rising, by one thread at a time.
#pragma once

#include <memory>
#include <span>

#include "pipeline/shard.h"

namespace tessera {

Status load_shards(const Model& model, const Plan& plan,
                   std::span<const std::unique_ptr<Shard>> shards, const LoadProgress& progress);

}  // namespace tessera
