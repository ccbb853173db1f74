#include "cli/find_workers.h"

#include <algorithm>
#include <charconv>

#include "base/log.h"
#include "cli/expert_options.h"
#include "cli/placement_options.h"
#include "cli/spawn_requests.h"
#include "cli/worker_sites.h"
#include "device/cpu/cpu_device.h"
#include "device/gpu/gpu_layout.h"
#include "experts/expert_worker.h"
#include "worker/connection_bytes.h"
#include "worker/model_ranges.h"

namespace tessera::cli {
namespace {

using worker::Role;
using worker::WorkerSite;

constexpr auto kProbeTime = std::chrono::seconds(10);

// What a worker may use for weights. One without a file keeps the model's metadata beside them.
std::int64_t free_memory(const worker::Probe& probe, const Model& model) {
  const auto free = static_cast<std::int64_t>(probe.memory_free);
  if (!worker::has_no_file(probe)) return free;
  const auto kept = static_cast<std::int64_t>(worker::opening_bytes(model.file()));
  return std::max<std::int64_t>(0, free - kept);
}

// A worker at an address was started with kernels of its own.
Status check_isa(const Config& config, const WorkerSite& site, const worker::Probe& probe) {
  if (site.spawn) return {};
  Status same = worker::check_isa(probe.build, site.isa);
  if (same) return {};
  return std::move(same).error().in(site.name).in(fmt::format(
      "{} {}", config.name_as_given("placement.cpu_isa"), config.text("placement.cpu_isa")));
}

// The host computes a worker's experts where that is late. Those that are spawned are started for
// this process's own kernels.
void tell_build(const WorkerSite& site, const worker::WorkerBuild& theirs,
                const worker::WorkerBuild& own) {
  if (site.spawn || theirs == own) return;
  log_warn("{} computes with {}, this process with {}: {}", site.name, worker::build_text(theirs),
           worker::build_text(own),
           theirs.device == own.device
               ? "which of them computes an expert shows in the last bits; the same program and "
                 "--cpu-isa at both avoid it"
               : "which of them computes an expert shows in the last bits");
}

// On this machine, whose memory it shares.
bool is_here(const WorkerSite& site) {
  return site.spawn || site.address.kind == worker::Address::Kind::unix_path;
}

// A GPU's memory and speed are no part of this machine's.
void take_device(const worker::Probe& probe, WorkerInventory& inventory) {
  inventory.kind = static_cast<DeviceKind>(probe.build.device);
  inventory.bytes_per_s = probe.bytes_per_second;
  inventory.op_per_s = probe.op_per_second;
  if (inventory.kind == DeviceKind::cpu) return;
  inventory.threads = std::max(1, static_cast<int>(probe.threads));
  inventory.memory_total = static_cast<std::int64_t>(probe.memory_total);
  inventory.memory_free = static_cast<std::int64_t>(probe.memory_free);
}

// Of a worker that listens: what it may use is for it to say.
WorkerInventory inventory_at(const DeviceName& name, const WorkerSite& site,
                             const worker::Probe& probe, std::int64_t free) {
  WorkerInventory inventory{.name = name,
                            .here = is_here(site),
                            .has_file = !worker::has_no_file(probe),
                            .threads = std::max(1, static_cast<int>(probe.threads)),
                            .memory_total = static_cast<std::int64_t>(probe.memory_total),
                            .memory_free = free};
  take_device(probe, inventory);
  const bool shares = inventory.here && inventory.kind == DeviceKind::cpu;
  (shares ? inventory.most : inventory.budget) = free;
  return inventory;
}

}  // namespace

Result<std::vector<LayerWorker>> find_layer_workers(const Config& config, const Model& model,
                                                    const Placement& placement) {
  TESSERA_ASSIGN(const std::vector<SpawnRequest> requests, spawn_requests(config));
  std::vector<LayerWorker> workers;
  for (const DeviceName& name : placement.devices) {
    if (name.worker.empty()) continue;
    LayerWorker found;
    TESSERA_ASSIGN(found.site, make_site(config, name.text(), Role::layers));
    if (name.worker.find(':') != std::string::npos) {
      TESSERA_ASSIGN(found.site.address, worker::Address::parse(name.worker));
    } else {
      std::size_t number = 0;
      std::from_chars(name.worker.data(), name.worker.data() + name.worker.size(), number);
      set_spawn(config, requests[number], found.site);
      found.inventory = {.name = name, .threads = requests[number].threads};
      if (requests[number].budget > 0) found.inventory.budget = requests[number].budget;
    }
    found.site.lifecycle.most_restarts = worker::kMostRestarts;
    found.site.lifecycle.reappears = !found.site.spawn;
    TESSERA_ASSIGN(const worker::Probe probe, probe_site(found.site, worker::after(kProbeTime)));
    TESSERA_TRY(check_isa(config, found.site, probe));
    TESSERA_TRY(worker::check_model(found.site, probe, model));
    if (!found.site.spawn) {
      found.site.build = probe.build;
      found.inventory = inventory_at(name, found.site, probe, free_memory(probe, model));
    } else {
      take_device(probe, found.inventory);
    }
    found.inventory.connection = [site = found.site, &model](const ShardLayout& layout) {
      return worker::layers_connection_bytes(site, model.spec(), layout);
    };
    workers.push_back(std::move(found));
  }
  return workers;
}

namespace {

// Room for all experts of the model and to compute any of them.
std::int64_t all_experts_bytes(const ExpertOptions& options, const Model& model,
                               const ExpertSite& found) {
  const ModelSpec& spec = model.spec();
  ShardLayout layout;
  layout.end_layer = spec.n_layer();
  const std::vector<std::int64_t> each = cpu_expert_bytes(model, layout);
  const int rows = options.most_job_rows();
  std::int64_t bytes =
      kWorkerBytes +
      found.inventory.connection({.max_rows = rows, .under_way = kMostExpertJobs}).there +
      expert_worker_overhead(model, each, {.max_rows = rows, .threads = found.threads});
  for (std::size_t l = 0; l < each.size(); ++l)
    if (const auto& moe = spec.layers[l].moe) bytes += moe->n_expert * each[l];
  return bytes;
}

// Asks it about itself. One at an address may come later, unless it is required: until then it is
// taken to have room for all experts.
Status ask_expert_worker(const Config& config, const Model& model, ExpertSite& found) {
  const Result<worker::SiteProbe> probe = probe_site(found.site, worker::after(kProbeTime));
  found.inventory = {.name = found.site.name, .here = is_here(found.site)};
  TESSERA_ASSIGN(const cpu::Isa isa, chosen_isa(config));
  TESSERA_ASSIGN(const ExpertOptions options, expert_options(config));
  found.inventory.connection = [site = found.site, &model,
                                payload = options.payload](const ExpertJobs& jobs) {
    return worker::experts_connection_bytes(site, model.spec(), jobs, payload);
  };
  if (probe) {
    TESSERA_TRY(check_isa(config, found.site, *probe));
    tell_build(found.site, probe->build, build_of(isa));
    if (!found.site.spawn) found.site.build = probe->build;
    TESSERA_TRY(worker::check_model(found.site, *probe, model));
    if (!found.site.spawn || found.threads == 0)
      found.threads = std::max(1, static_cast<int>(probe->threads));
    found.inventory.kind = static_cast<DeviceKind>(probe->build.device);
    if (found.inventory.kind != DeviceKind::cpu)
      if (Status can = gpu_supports(model.spec()); !can)
        return std::move(can).error().in(found.site.name);
    found.inventory.budget = free_memory(*probe, model);
    found.inventory.bytes_per_s = probe->bytes_per_second;
    found.inventory.op_per_s = probe->op_per_second;
    found.inventory.call_s = std::chrono::duration<double>(probe->round_trip).count();
  } else {
    const bool may_come = !found.site.spawn && !config.flag("experts.ipc_required") &&
                          probe.error().code == ErrorCode::unavailable;
    if (!may_come) return probe.error();
    log_warn("{}; the host computes its experts until it comes", probe.error().message);
    found.site.build = build_of(isa);
    found.inventory.unheard = probe.error().message;
    found.inventory.budget = all_experts_bytes(options, model, found);
  }
  found.inventory.threads = found.threads;
  return {};
}

// Whether the worker is for a GPU, which then nobody else is: both would count on all of its
// memory.
Result<bool> takes_gpu(const SpawnRequest& request, std::size_t number,
                       const std::vector<SpawnRequest>& requests, const Placement& placement) {
  TESSERA_ASSIGN(const DeviceName device, parse_device_name(request.device));
  if (!device.gpu()) return false;
  bool taken = std::find(placement.devices.begin(), placement.devices.end(), device) !=
               placement.devices.end();
  for (std::size_t other = 0; other < requests.size(); ++other)
    taken |= other != number && requests[other].device == request.device;
  if (!taken) return true;
  return Error::make(ErrorCode::invalid,
                     "--spawn-worker experts,device={0}: {0} is named twice; a GPU works for one "
                     "process, here or in a worker",
                     request.device);
}

}  // namespace

Result<std::vector<ExpertSite>> find_expert_workers(const Config& config, const Model& model,
                                                    const Placement& placement) {
  TESSERA_ASSIGN(const std::vector<SpawnRequest> requests, spawn_requests(config));
  std::vector<ExpertSite> workers;
  std::vector<std::int64_t> budgets;  // that were asked for
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].role != Role::experts) continue;
    SpawnRequest request = requests[i];
    TESSERA_ASSIGN(const bool gpu, takes_gpu(request, i, requests, placement));
    // A GPU's threads only load, and are as many as it says.
    if (!gpu) request.threads = std::max(1, request.threads);
    ExpertSite found{.threads = request.threads};
    TESSERA_ASSIGN(found.site, make_site(config, numbered(i).text(), Role::experts));
    set_spawn(config, request, found.site);
    workers.push_back(std::move(found));
    budgets.push_back(request.budget);
  }
  for (const std::string& text : config.list("worker.experts")) {
    ExpertSite found;
    TESSERA_ASSIGN(found.site, make_site(config, "worker:" + text, Role::experts));
    TESSERA_ASSIGN(found.site.address, worker::Address::parse(text));
    workers.push_back(std::move(found));
    budgets.push_back(0);
  }
  for (std::size_t i = 0; i < workers.size(); ++i)
    for (const DeviceBudget& budget : placement.budgets)
      if (budget.device.text() == workers[i].site.name)
        budgets[i] = budgets[i] > 0 ? std::min(budgets[i], budget.bytes) : budget.bytes;
  for (ExpertSite& found : workers) TESSERA_TRY(ask_expert_worker(config, model, found));
  // Those on this machine's cores share its memory with each other and with this process.
  const auto shares = [](const ExpertSite& found) {
    return is_here(found.site) && found.inventory.kind == DeviceKind::cpu;
  };
  const auto here = std::count_if(workers.begin(), workers.end(), shares);
  const std::int64_t share = probe_inventory(1).devices.front().memory_free / (here + 1);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    std::int64_t& budget = workers[i].inventory.budget;
    if (shares(workers[i])) budget = std::min(budget, share);
    // What one at an address may use is for it to say, too.
    const bool spawned = workers[i].site.spawn.has_value();
    const bool free_choice = spawned && workers[i].inventory.kind == DeviceKind::cpu;
    if (budgets[i] > 0) budget = free_choice ? budgets[i] : std::min(budget, budgets[i]);
    const bool heard = workers[i].inventory.unheard.empty();
    workers[i].inventory.bounded = budgets[i] > 0 || (!spawned && heard);
  }
  return workers;
}

}  // namespace tessera::cli
