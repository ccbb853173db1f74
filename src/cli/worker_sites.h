// How a worker is reached: where it listens or how its process is started, and what both ends must
// agree on, as the options have it.
//
//   TESSERA_ASSIGN(worker::WorkerSite site, make_site(config, "worker:0", worker::Role::layers));
//   set_spawn(config, request, site);                               // or site.address = ...
//   started_site(config, site, {.model = path, .threads = 2, .budget = bytes});
#pragma once

#include <cstdint>
#include <string>

#include "cli/config.h"
#include "cli/spawn_requests.h"
#include "device/cpu/isa.h"
#include "device/device.h"
#include "worker/site.h"

namespace tessera::cli {

// What this program computes with, for a worker to say and for a host to compare.
worker::WorkerBuild build_of(cpu::Isa isa, DeviceKind device = DeviceKind::cpu);

// The token for workers over tcp; empty where none is given.
Result<std::string> worker_token(const Config& config);

// Without an address and without a process. ErrorCode::invalid for a token that is none.
Result<worker::WorkerSite> make_site(const Config& config, std::string name, worker::Role role);
// Has the site started as a process of its own, which can be probed then.
void set_spawn(const Config& config, const SpawnRequest& request, worker::WorkerSite& site);

// What a worker's process is started with, besides what the configuration says.
struct WorkerStart {
  std::string model;  // its file
  int threads = 0;
  std::int64_t budget = 0;
};
// The site with the command line of its process; unchanged at an address.
worker::WorkerSite started_site(const Config& config, const worker::WorkerSite& site,
                                const WorkerStart& start);

}  // namespace tessera::cli
