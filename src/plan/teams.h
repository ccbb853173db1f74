// Teams of CPU threads and the cores that they need.
#pragma once

#include "base/result.h"
#include "plan/placement.h"

namespace tessera {

// That a team of CPU threads has a core of its own. One without has to be asked for with its
// threads. ErrorCode::invalid.
Status check_team(const DeviceName& name, int cores);

}  // namespace tessera
