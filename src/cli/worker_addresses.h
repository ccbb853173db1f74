// The addresses of workers that listen, in --target-devices and --expert-worker: each is right, and
// none is named twice, however it is spelled (unix:/a and unix:/./a, tcp:localhost:7 and
// tcp:127.0.0.1:7). Hosts' names are looked up for that where there are several.
#pragma once

#include "cli/config.h"
#include "plan/placement.h"

namespace tessera::cli {

// ErrorCode::invalid in one line that names the option and both spellings.
Status check_worker_addresses(const Config& config, const Placement& placement);

}  // namespace tessera::cli
