// The options that say on which devices a model lies, as values.
#pragma once

#include "cli/config.h"
#include "device/cpu/isa.h"
#include "pipeline/shard.h"
#include "plan/placement.h"

namespace tessera::cli {

Result<Placement> placement_of(const Config& config);
// The one device of `tessera worker`.
Result<Placement> worker_placement(const Config& config);
// The instruction set of --cpu-isa, or the best that there is.
Result<cpu::Isa> chosen_isa(const Config& config);
// How devices are opened; a worker leaves the rest to its client.
DeviceOptions opening_options(const Config& config);
// What can be said about these options without a model.
Status check_placement(const Config& config);

}  // namespace tessera::cli
