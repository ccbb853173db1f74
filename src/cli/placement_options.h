// The options that say on which devices a model lies, as values.
#pragma once

#include "cli/config.h"
#include "plan/placement.h"
#include "plan/plan.h"

namespace tessera::cli {

Result<Placement> placement_of(const Config& config);
// The placement's devices as they are on this machine.
Result<Inventory> inventory_of(const Config& config);
// What can be said about these options without a model.
Status check_placement(const Config& config);

}  // namespace tessera::cli
