// tessera devices: what can hold layers on this machine, and why something cannot.
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/output.h"
#include "device/cpu/isa.h"
#include "device/gpu/plugin.h"
#include "plan/plan.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

// The other GPUs to which it hands rows without a copy.
std::vector<std::string> hands_rows_to(const GpuVendor& vendor, std::size_t index) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min<std::size_t>(vendor.devices.size(), 64); ++i)
    if (i != index && (vendor.devices[index].hands_rows_to >> i & 1) != 0)
      names.push_back(fmt::format("{}:{}", vendor.vendor, i));
  return names;
}

Json gpu_json(const GpuVendor& vendor, int index, const GpuInfo& info) {
  Json json = {{"device", fmt::format("{}:{}", vendor.vendor, index)},
               {"name", info.name},
               {"architecture", info.architecture},
               {"usable", info.refusal[0] == '\0'},
               {"memory_bytes", info.memory_total},
               {"free_bytes", info.memory_free},
               {"unified", info.unified},
               {"bytes_per_second", info.bytes_per_second},
               {"multiprocessors", info.multiprocessors},
               {"runs", info.runs},
               {"hands_rows_to", hands_rows_to(vendor, static_cast<std::size_t>(index))}};
  if (info.refusal[0] != '\0') json["reason"] = info.refusal;
  return json;
}

Json devices_json(const DeviceInventory& cpu, const std::vector<GpuVendor>& vendors) {
  Json devices = Json::array({{{"device", "cpu"},
                               {"name", cpu::isa_name(cpu::detect_isa())},
                               {"usable", true},
                               {"threads", cpu.threads},
                               {"memory_bytes", cpu.memory_total},
                               {"free_bytes", cpu.memory_free}}});
  Json problems = Json::array();
  for (const GpuVendor& vendor : vendors) {
    for (std::size_t i = 0; i < vendor.devices.size(); ++i)
      devices.push_back(gpu_json(vendor, static_cast<int>(i), vendor.devices[i]));
    if (!vendor.problem.empty())
      problems.push_back({{"vendor", vendor.vendor}, {"reason", vendor.problem}});
  }
  return {{"devices", devices}, {"not_used", problems}};
}

void print_devices(const DeviceInventory& cpu, const std::vector<GpuVendor>& vendors) {
  print_out("{:<9}{} threads, {}, {} of {} free\n", "cpu", cpu.threads,
            cpu::isa_name(cpu::detect_isa()), format_bytes(cpu.memory_free),
            format_bytes(cpu.memory_total));
  for (const GpuVendor& vendor : vendors) {
    for (std::size_t i = 0; i < vendor.devices.size(); ++i) {
      const GpuInfo& info = vendor.devices[i];
      const std::string name = fmt::format("{}:{}", vendor.vendor, i);
      const std::vector<std::string> next = hands_rows_to(vendor, i);
      print_out("{:<9}{}, {}, {} of {} free{}{}\n", name, info.name, info.architecture,
                format_bytes(info.memory_free), format_bytes(info.memory_total),
                info.unified ? ", of the machine's memory" : "",
                next.empty() ? "" : fmt::format("; hands rows to {}", fmt::join(next, ", ")));
      if (info.refusal[0] != '\0') print_out("{:<9}not used: {}\n", "", info.refusal);
    }
    if (!vendor.problem.empty()) print_out("{:<9}not used: {}\n", vendor.vendor, vendor.problem);
  }
  print_out(
      "\nFor --target-devices, in the order of the layers: these, cpu:0, cpu:1 ... for parts of "
      "the "
      "cores,\nworker:0 for the first of --spawn-worker layers, worker:ADDRESS for a worker that "
      "listens.\n");
}

}  // namespace

int devices_command(const Config& config) {
  const Inventory inventory = probe_inventory(0);
  const std::vector<GpuVendor> vendors = probe_gpus(config.text("placement.gpu_plugins"));
  const DeviceInventory& cpu = inventory.devices.front();
  if (config.flag("output.json")) {
    print_out(json_text(devices_json(cpu, vendors), 2) + "\n");
  } else {
    print_devices(cpu, vendors);
  }
  return kExitOk;
}

}  // namespace tessera::cli
