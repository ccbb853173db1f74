#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tessera {
namespace {

std::vector<int> usable_processors() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

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

// A number from a file of the cgroup; -1 for "max" or nothing.
std::int64_t cgroup_bytes(const char* name) {
  std::ifstream file(std::string("/sys/fs/cgroup/") + name);
  std::int64_t bytes = -1;
  file >> bytes;
  return file ? bytes : -1;
}

DeviceInventory probe_memory() {
  DeviceInventory cpu;
  cpu.name = "cpu";
  cpu.memory_total = meminfo_bytes("MemTotal");
  cpu.memory_free = meminfo_bytes("MemAvailable");
  const std::int64_t limit = cgroup_bytes("memory.max");
  if (limit > 0 && limit < cpu.memory_total) {
    cpu.memory_total = limit;
    const std::int64_t used = std::max<std::int64_t>(0, cgroup_bytes("memory.current"));
    cpu.memory_free = std::min(cpu.memory_free, std::max<std::int64_t>(0, limit - used));
  }
  return cpu;
}

// The part of a team: part `team` of `teams` equal ones. Empty where there are more teams than
// cores: then nothing is gained by binding threads.
std::vector<int> cores_of(const std::vector<int>& cpus, int team, int teams) {
  const int n = static_cast<int>(cpus.size());
  if (teams > n) return {};
  return {cpus.begin() + team * n / teams, cpus.begin() + (team + 1) * n / teams};
}

}  // namespace

Inventory probe_inventory(int threads) {
  DeviceInventory cpu = probe_memory();
  cpu.threads = threads > 0 ? threads : static_cast<int>(usable_processors().size());
  return {.devices = {cpu}};
}

Result<Inventory> probe_inventory(const Placement& placement, int threads) {
  const int devices = static_cast<int>(placement.devices.size());
  if (threads > 0 && threads < devices)
    return Error::make(ErrorCode::invalid, "--threads {}: {} devices need at least a thread each",
                       threads, devices);
  int teams = 1;
  for (const DeviceName& name : placement.devices)
    teams = std::max(teams, name.team.value_or(0) + 1);
  const std::vector<int> cpus = usable_processors();
  const DeviceInventory machine = probe_memory();
  Inventory inventory;
  for (int i = 0; i < devices; ++i) {
    const DeviceName& name = placement.devices[static_cast<std::size_t>(i)];
    DeviceInventory device = machine;
    device.name = name.text();
    const std::vector<int> cores =
        name.team ? cores_of(cpus, *name.team, teams) : std::vector<int>(cpus);
    const int share = threads / devices + (i < threads % devices ? 1 : 0);
    device.threads = threads > 0 ? share : std::max(1, static_cast<int>(cores.size()));
    // One team over all cores is left to the system.
    if (name.team && !cores.empty())
      for (int t = 0; t < device.threads; ++t)
        device.cpus.push_back(cores[static_cast<std::size_t>(t) % cores.size()]);
    for (const DeviceBudget& budget : placement.budgets)
      if (budget.device == name) device.budget = budget.bytes;
    inventory.devices.push_back(std::move(device));
  }
  return inventory;
}

}  // namespace tessera
