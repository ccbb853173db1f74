// Placement: what a person says about where a model should lie, as text, checked before a file is
// opened.
//
//   TESSERA_ASSIGN(Placement placement,
//                  parse_placement({.devices = "cpu:0,cpu:1",
//                                   .layer_split = "3,1",
//                                   .budgets = {{"cpu:1", std::int64_t{2} << 30}}}));
//
// A device is `cpu`, all cores in one team of threads, or `cpu:0`, `cpu:1`, ...: the usable cores
// in as many equal parts as the highest number asks for, a team for each; or a GPU by the number
// that its driver gives it: `cuda:0`, `hip:1`. `worker:0` is the first worker that this process
// starts, `worker:unix:/path` and `worker:tcp:host:port` one that listens there. Errors are
// ErrorCode::invalid and name the flag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device_kind.h"

namespace tessera {

struct DeviceName {
  DeviceKind kind = DeviceKind::cpu;
  std::optional<int> team = std::nullopt;  // of the CPU, absent: plain `cpu`; of a GPU: its number
  std::string worker = {};                 // not empty: what stands after `worker:`
  bool gpu() const { return kind != DeviceKind::cpu; }
  std::string text() const;
  bool operator==(const DeviceName&) const = default;
};
Result<DeviceName> parse_device_name(std::string_view text);

struct DeviceBudget {
  DeviceName device;
  std::int64_t bytes = 0;
};

struct Placement {
  std::vector<DeviceName> devices = {DeviceName{}};  // in the order of the layers
  std::vector<double> layer_weights;                 // one a device; empty: the planner's choice
  std::vector<DeviceBudget> budgets;                 // at most one a device, or worker of experts
  std::string gpu_plugins;  // the folder of the GPU plug-ins; empty: the usual places
};

struct PlacementText {
  std::string_view devices;      // --target-devices; empty: cpu
  std::string_view layer_split;  // --target-layer-split; empty: automatic
  struct Budget {
    std::string device;  // empty: the only one
    std::int64_t bytes = 0;
  };
  std::vector<Budget> budgets;             // --budget, each BYTES or DEVICE=BYTES
  std::string_view gpu_plugins;            // --gpu-plugins
  std::vector<DeviceName> expert_workers;  // which may have budgets too
};
Result<Placement> parse_placement(const PlacementText& text);

}  // namespace tessera
