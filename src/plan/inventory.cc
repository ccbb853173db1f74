#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "plan/plan.h"

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

// The folder of this process's control group (version 2).
std::string cgroup_folder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("0::")) {
      const std::string folder = "/sys/fs/cgroup" + line.substr(3);
      if (std::ifstream(folder + "/memory.max")) return folder + "/";
    }
  return "/sys/fs/cgroup/";
}

// A number from a file of the cgroup; -1 for "max" or nothing.
std::int64_t cgroup_number(const char* name) {
  std::ifstream file(cgroup_folder() + name);
  std::int64_t number = -1;
  file >> number;
  return file ? number : -1;
}

// One line "key number" of the cgroup's memory.stat; 0 if it is not there.
std::int64_t cgroup_memory_stat(const std::string& key) {
  std::ifstream file(cgroup_folder() + "memory.stat");
  std::string name;
  std::int64_t bytes = 0;
  while (file >> name >> bytes)
    if (name == key) return bytes;
  return 0;
}

// Processors' worth of time that the cgroup may use; 0 where that is not limited.
int cgroup_processors() {
  std::ifstream file(cgroup_folder() + "cpu.max");
  std::int64_t quota = 0;
  std::int64_t period = 0;
  if (!(file >> quota >> period) || period <= 0) return 0;
  return static_cast<int>(std::max<std::int64_t>(1, (quota + period - 1) / period));
}

// Those this process may run on, and no more than its share of time keeps busy.
std::vector<int> usable_processors() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  if (cpus.empty()) cpus.push_back(0);
  const auto quota = static_cast<std::size_t>(cgroup_processors());
  if (quota > 0 && quota < cpus.size()) cpus.resize(quota);
  return cpus;
}

DeviceInventory probe_memory() {
  DeviceInventory cpu;
  cpu.name = "cpu";
  cpu.memory_total = meminfo_bytes("MemTotal");
  cpu.memory_free = meminfo_bytes("MemAvailable");
  const std::int64_t limit = cgroup_number("memory.max");
  if (limit > 0 && limit < cpu.memory_total) {
    cpu.memory_total = limit;
    // The page cache counts as used there, but gives way.
    const std::int64_t used = std::max<std::int64_t>(
        0, cgroup_number("memory.current") - cgroup_memory_stat("inactive_file"));
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
