// The options that name workers, as values: who is started, who is connected to, and with what.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/config.h"
#include "device/cpu/isa.h"
#include "plan/placement.h"
#include "plan/plan.h"
#include "worker/site.h"

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

// `worker:0`, `worker:1`, ...: the spawned workers of role layers, with their numbers.
std::vector<DeviceName> spawned_layer_devices(const std::vector<SpawnRequest>& requests);
// The workers of role experts, spawned or at --expert-worker, by the names that --budget takes.
std::vector<DeviceName> expert_devices(const Config& config,
                                       const std::vector<SpawnRequest>& requests);

// What this program computes with, for a worker to say and for a host to compare.
worker::WorkerBuild build_of(cpu::Isa isa, DeviceKind device = DeviceKind::cpu);

// The token for workers over tcp; empty where none is given.
Result<std::string> worker_token(const Config& config);

// What can be said of them without starting one: that the binaries are there.
Status check_workers(const Config& config, const Placement& placement);

// The workers that hold layers in this placement, asked about themselves. The model must outlive
// what is found.
struct LayerWorker {
  worker::WorkerSite site;
  WorkerInventory inventory;
};
Result<std::vector<LayerWorker>> find_layer_workers(const Config& config, const Model& model,
                                                    const Placement& placement);

// The workers that hold experts, spawned or at --expert-worker, asked about themselves. One at an
// address that does not answer is there all the same, unless workers are required.
struct ExpertSite {
  worker::WorkerSite site;
  ExpertWorkerInventory inventory;
  int threads = 1;
};
Result<std::vector<ExpertSite>> find_expert_workers(const Config& config, const Model& model,
                                                    const Placement& placement);

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
