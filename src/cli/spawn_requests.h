// --spawn-worker as values: the workers that are to be started, in the order of the options.
//
//   TESSERA_ASSIGN(const std::vector<SpawnRequest> requests, spawn_requests(config));
//   numbered(0).text();                               // "worker:0", whatever its role
//
// Pure, but for the configuration. Errors are ErrorCode::invalid and name the part that is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/config.h"
#include "plan/placement.h"
#include "worker/messages.h"

namespace tessera::cli {

// One --spawn-worker ROLE[,device=D][,bin=PATH][,threads=N][,budget=BYTES].
struct SpawnRequest {
  worker::Role role = worker::Role::layers;
  std::string device = "cpu";
  std::string binary;                  // empty: this program
  int threads = 0;                     // 0: a share of this machine's cores; of experts one
  std::int64_t budget = 0;             // 0: what is free
  std::vector<std::string> keys = {};  // that were given
};
Result<std::vector<SpawnRequest>> spawn_requests(const Config& config);

// The device that the request with this number is, counting from 0.
DeviceName numbered(std::size_t request);
// `worker:0`, `worker:1`, ...: the spawned workers of role layers, with their numbers.
std::vector<DeviceName> spawned_layer_devices(const std::vector<SpawnRequest>& requests);

}  // namespace tessera::cli
