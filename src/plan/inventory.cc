#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/cgroup.h"
#include "base/checked.h"
#include "plan/gpu_inventory.h"
#include "plan/teams.h"

namespace tessera {
namespace {

// "MemAvailable:   123 kB" and the like; 0 if the key is not there.
std::int64_t meminfo_bytes(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes) {
    std::getline(file, unit);
    if (name == key + ":") return kilobytes * 1024;
  }
  return 0;
}

// Those this process may run on, and no more than its share of time keeps busy.
std::vector<int> usable_processors() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  if (cpus.empty()) cpus.push_back(0);
  const auto share = static_cast<std::size_t>(cgroup_limits().processors);
  if (share < cpus.size()) cpus.resize(share);
  return cpus;
}

DeviceInventory probe_memory() {
  DeviceInventory cpu;
  cpu.name = "cpu";
  const CgroupLimits limits = cgroup_limits();
  cpu.memory_total = std::min(meminfo_bytes("MemTotal"), limits.memory);
  cpu.memory_free = std::min(meminfo_bytes("MemAvailable"), limits.memory_free);
  return cpu;
}

const WorkerInventory* find_worker(std::span<const WorkerInventory> workers,
                                   const DeviceName& name) {
  for (const WorkerInventory& worker : workers)
    if (worker.name == name) return &worker;
  return nullptr;
}

// How this machine's cores go to the devices that have no number of threads of their own.
struct Sharing {
  int devices = 0;  // that share
  int gpus = 0;     // of this process
  int teams = 1;    // parts of the cores: numbered teams, then workers
  int threads = 0;  // in all, as asked for; 0: the cores
  int cores = 0;

  // The cores of a team: one of equal parts. Empty where there are more teams than cores: then
  // nothing is gained by binding threads.
  std::vector<int> cores_of(int team, const std::vector<int>& cpus) const {
    const int n = static_cast<int>(cpus.size());
    if (teams > n) return {};
    return {cpus.begin() + team * n / teams, cpus.begin() + (team + 1) * n / teams};
  }

  int share(int part) const {
    const int all = threads > 0 ? threads : cores;
    return std::max(1, all / devices + (part < all % devices ? 1 : 0));
  }

  // Of the host for a GPU: a core is left to the thread that drives each, or some member of the
  // team would wait for one at every barrier. The hosts of several GPUs take turns while tokens
  // come.
  int beside_gpu() const { return threads > 0 ? threads : std::max(1, cores - gpus); }
};

// `sharing`: threads and cores before any are given to workers.
Sharing find_sharing(const Placement& placement, std::span<const WorkerInventory> workers,
                     Sharing sharing) {
  int sharing_workers = 0;
  for (const DeviceName& name : placement.devices) {
    const WorkerInventory* worker = name.worker.empty() ? nullptr : find_worker(workers, name);
    if (name.gpu()) ++sharing.gpus;
    if (name.gpu()) continue;
    if (worker != nullptr && worker->kind != DeviceKind::cpu) continue;
    if (name.worker.empty() || (worker != nullptr && worker->threads == 0)) ++sharing.devices;
    if (worker != nullptr && worker->threads == 0) ++sharing_workers;
    sharing.teams = std::max(sharing.teams, name.team.value_or(0) + 1);
  }
  // The cores of a worker here are not for others.
  for (const WorkerInventory& worker : workers)
    if (worker.here && worker.kind == DeviceKind::cpu) sharing.cores -= worker.threads;
  sharing.teams += sharing_workers;
  sharing.cores = std::max(sharing.cores, 1);
  return sharing;
}

Status check_sharing(const Placement& placement, const Sharing& sharing, int cores) {
  if (sharing.threads > 0 && sharing.threads < sharing.devices)
    return Error::make(ErrorCode::invalid, "--threads {}: {} devices need at least a thread each",
                       sharing.threads, sharing.devices);
  for (const DeviceName& name : placement.devices)
    if (sharing.threads == 0)
      if (Status team = check_team(name, cores); !team)
        return std::move(team).error().in("--target-devices");
  return {};
}

void add_local(const DeviceName& name, const Sharing& sharing, const std::vector<int>& cpus,
               int part, DeviceInventory& device) {
  const std::vector<int> cores =
      name.team ? sharing.cores_of(*name.team, cpus) : std::vector<int>();
  device.number = name.team.value_or(0);
  device.threads = sharing.share(part);
  // A team has the threads of its own cores; one team over all cores is left to the system.
  if (name.team && sharing.threads == 0)
    device.threads = std::max(1, static_cast<int>(cores.size()));
  if (name.team && !cores.empty())
    for (int t = 0; t < device.threads; ++t)
      device.cpus.push_back(cores[static_cast<std::size_t>(t) % cores.size()]);
}

double speed_of(double bytes_per_s) {
  return std::max(1.0, bytes_per_s / kThreadBytesPerSecond);
}

// `number`: of the memory, where it is elsewhere.
void add_worker(const WorkerInventory& worker, DeviceInventory& device, int number) {
  device.remote = true;
  device.here = worker.here;
  device.threads = worker.threads;
  device.budget = worker.budget;
  device.most = worker.most;
  device.connection = worker.connection;
  device.has_file = worker.has_file;
  device.kind = worker.kind;
  device.bytes_per_s = worker.bytes_per_s;
  device.op_per_s = worker.op_per_s;
  if (worker.kind != DeviceKind::cpu) device.speed = speed_of(worker.bytes_per_s);
  if (worker.here && worker.kind == DeviceKind::cpu) return;
  device.memory = number + 1;
  device.memory_total = worker.memory_total;
  device.memory_free = worker.memory_free;
}

// What a GPU's driver takes beside the plan while it serves: kernels as they are first used, their
// local memory, captured graphs. GpuPlan.IsWhatTheDeviceTakes holds it against what a device took.
constexpr std::int64_t kDriverBytes = std::int64_t{256} << 20;

constexpr int kGpuMemory = 1 << 20;  // of the first vendor's first device; 1,024 numbers a vendor

}  // namespace

DeviceInventory gpu_inventory(const DeviceName& name, const GpuInfo& info,
                              const DeviceInventory& machine, int threads) {
  DeviceInventory device;
  device.model = info.name;
  device.kind = name.kind;
  device.number = *name.team;
  device.threads = std::max(1, threads);
  device.hands_rows_to = info.hands_rows_to;
  device.runs = info.runs;
  device.bytes_per_s = static_cast<double>(info.bytes_per_second);
  device.speed = speed_of(device.bytes_per_s);
  device.memory_total = info.memory_total;
  const std::int64_t free =
      std::min(info.memory_free, std::max<std::int64_t>(0, info.memory_total));
  device.memory_free = std::max<std::int64_t>(0, saturated_rest(free, {kDriverBytes}));
  if (!info.unified) {
    device.memory = kGpuMemory + 1024 * (static_cast<int>(name.kind) - 1) + *name.team;
    return device;
  }
  device.memory = kHostMemory;
  device.memory_total = machine.memory_total;
  device.memory_free = std::clamp<std::int64_t>(std::min(device.memory_free, machine.memory_free),
                                                0, std::max<std::int64_t>(0, machine.memory_total));
  return device;
}

std::int64_t allowed_budget(const DeviceInventory& device, std::int64_t asked) {
  asked = std::min({asked, device.budget.value_or(asked), device.most.value_or(asked)});
  const bool unified =
      device.kind != DeviceKind::cpu && !device.remote && device.memory == kHostMemory;
  return unified ? std::min(asked, device.memory_free) : asked;
}

Status check_team(const DeviceName& name, int cores) {
  if (!name.worker.empty() || name.gpu() || name.team.value_or(0) < cores) return {};
  return Error::make(ErrorCode::invalid,
                     "{} makes {} teams, and {} core{} here {} enough for {}; name fewer, or give "
                     "the threads of teams that take turns (--threads)",
                     name.text(), *name.team + 1, cores, cores == 1 ? "" : "s",
                     cores == 1 ? "is" : "are", cores);
}

int usable_cores() {
  return static_cast<int>(usable_processors().size());
}

Inventory probe_inventory(int threads) {
  DeviceInventory cpu = probe_memory();
  cpu.threads = threads > 0 ? threads : usable_cores();
  return {.devices = {cpu}};
}

Result<Inventory> probe_inventory(const Placement& placement, int threads,
                                  std::span<const WorkerInventory> workers) {
  const std::vector<int> cpus = usable_processors();
  const Sharing sharing = find_sharing(
      placement, workers, {.threads = threads, .cores = static_cast<int>(cpus.size())});
  TESSERA_TRY(check_sharing(placement, sharing, static_cast<int>(cpus.size())));
  const DeviceInventory machine = probe_memory();
  Inventory inventory{.memory_total = machine.memory_total, .memory_free = machine.memory_free};
  int part = 0;  // of those that share
  for (const DeviceName& name : placement.devices) {
    DeviceInventory device = machine;
    if (name.gpu()) {
      TESSERA_ASSIGN(const GpuInfo info,
                     probe_gpu(device_kind_name(name.kind), *name.team, placement.gpu_plugins));
      device = gpu_inventory(name, info, machine, sharing.beside_gpu());
    } else if (!name.worker.empty()) {
      const WorkerInventory* worker = find_worker(workers, name);
      if (worker == nullptr)
        return Error::make(ErrorCode::invalid, "--target-devices: {} is not started; add {}",
                           name.text(), "--spawn-worker layers");
      add_worker(*worker, device, static_cast<int>(inventory.devices.size()));
      if (device.threads == 0) device.threads = sharing.share(part++);
    } else {
      add_local(name, sharing, cpus, part++, device);
    }
    device.name = name.text();
    for (const DeviceBudget& budget : placement.budgets)
      if (budget.device == name) device.budget = allowed_budget(device, budget.bytes);
    inventory.devices.push_back(std::move(device));
  }
  return inventory;
}

}  // namespace tessera
