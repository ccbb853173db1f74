#include "cli/worker_options.h"

#include <algorithm>
#include <charconv>

#include "cli/worker_addresses.h"
#include "plan/plan.h"
#include "plan/teams.h"
#include "worker/process.h"

namespace tessera::cli {
namespace {

using worker::Role;

// It would end with this, as the first thing that it says.
Status check_spawn_team(const SpawnRequest& request) {
  if (request.threads > 0) return {};
  TESSERA_ASSIGN(const DeviceName device, parse_device_name(request.device));
  Status team = check_team(device, usable_cores());
  if (team) return {};
  return std::move(team).error().in(fmt::format("--spawn-worker device={}", request.device));
}

bool names(const Placement& placement, const DeviceName& device) {
  return std::find(placement.devices.begin(), placement.devices.end(), device) !=
         placement.devices.end();
}

// Without a worker of experts there is nothing that could be required.
Status check_required(const Config& config, const std::vector<SpawnRequest>& requests) {
  if (!config.flag("experts.ipc_required") || !expert_devices(config, requests).empty()) return {};
  return Error::make(ErrorCode::invalid,
                     "{}: no worker of experts is named; add --expert-worker ADDRESS or "
                     "--spawn-worker experts, or leave this out",
                     config.name_as_given("experts.ipc_required"));
}

}  // namespace

std::vector<DeviceName> expert_devices(const Config& config,
                                       const std::vector<SpawnRequest>& requests) {
  std::vector<DeviceName> devices;
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (requests[i].role == Role::experts) devices.push_back(numbered(i));
  for (const std::string& address : config.list("worker.experts"))
    devices.push_back({.worker = address});
  return devices;
}

Status check_workers(const Config& config, const Placement& placement) {
  TESSERA_ASSIGN(const std::vector<SpawnRequest> requests, spawn_requests(config));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].binary.empty()) TESSERA_TRY(worker::check_binary(requests[i].binary));
    TESSERA_TRY(check_spawn_team(requests[i]));
    if (requests[i].role == Role::layers && !names(placement, numbered(i)))
      return Error::make(ErrorCode::invalid,
                         "--spawn-worker: {} is started for layers and --target-devices does not "
                         "name it",
                         numbered(i).text());
    for (const DeviceBudget& budget : placement.budgets)
      if (requests[i].budget > 0 && budget.device == numbered(i))
        return Error::make(ErrorCode::invalid,
                           "--budget: {} has a budget in --spawn-worker already; give one of them",
                           numbered(i).text());
  }
  for (const DeviceName& name : placement.devices) {
    if (name.worker.empty() || name.worker.find(':') != std::string::npos) continue;
    std::size_t number = requests.size();
    std::from_chars(name.worker.data(), name.worker.data() + name.worker.size(), number);
    if (number >= requests.size() || requests[number].role != Role::layers)
      return Error::make(ErrorCode::invalid,
                         "--target-devices: {} needs a --spawn-worker layers with that number; {} "
                         "are started, counting those of experts",
                         name.text(), requests.size());
  }
  TESSERA_TRY(check_worker_addresses(config, placement));
  TESSERA_TRY(check_required(config, requests));
  return {};
}

}  // namespace tessera::cli
