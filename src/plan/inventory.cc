#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "plan/plan.h"

namespace tessera {
namespace {

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
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

}  // namespace

Inventory probe_inventory(int threads) {
  DeviceInventory cpu;
  cpu.name = "cpu";
  cpu.threads = threads > 0 ? threads : usable_processors();
  cpu.memory_total = meminfo_bytes("MemTotal");
  cpu.memory_free = meminfo_bytes("MemAvailable");
  const std::int64_t limit = cgroup_bytes("memory.max");
  if (limit > 0 && limit < cpu.memory_total) {
    cpu.memory_total = limit;
    const std::int64_t used = std::max<std::int64_t>(0, cgroup_bytes("memory.current"));
    cpu.memory_free = std::min(cpu.memory_free, std::max<std::int64_t>(0, limit - used));
  }
  cpu.memory_free = std::min(cpu.memory_free, cpu.memory_total);
  return {.devices = {cpu}};
}

}  // namespace tessera
