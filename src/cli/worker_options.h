// What can be said of the options that name workers without starting or asking one.
#pragma once

#include <vector>

#include "cli/config.h"
#include "cli/spawn_requests.h"
#include "plan/placement.h"

namespace tessera::cli {

// The workers of role experts, spawned or at --expert-worker, by the names that --budget takes.
std::vector<DeviceName> expert_devices(const Config& config,
                                       const std::vector<SpawnRequest>& requests);

// That the options agree with each other and that the binaries are there. ErrorCode::invalid.
Status check_workers(const Config& config, const Placement& placement);

}  // namespace tessera::cli
