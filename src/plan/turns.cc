#include "plan/turns.h"

#include <algorithm>
#include <utility>

#include "device/gpu/gpu_layout.h"
#include "plan/layer_cuts.h"

namespace tessera {
namespace {

// With more the wait is hardly shorter, and each range's scratch takes memory of its own.
constexpr int kMostTurns = 5;
// A shorter range has hardly begun when it ends.
constexpr int kLeastLayers = 4;
// What a crossing adds to a token, from run to run and else (docs/results-gpu.md, "Two GPUs in
// turns").
constexpr double kRunCrossing_s = 1e-6, kCrossing_s = 5e-6;
// Of a token's time all crossings may take so much.
constexpr double kMostOfToken = 0.03;

// With memory of its own.
bool takes_turns(const DeviceInventory& device) {
  return device.kind != DeviceKind::cpu && !device.remote && device.memory != kHostMemory;
}

// Ranges that the layers can be cut into.
std::ptrdiff_t layer_parts(const Model& model) {
  const std::vector<bool> legal = legal_cuts(model.spec());
  return std::count(legal.begin() + 1, legal.end(), true);
}

// Whether each hands its rows to the next one, and the last to the first.
bool hand_rows_round(const std::vector<DeviceInventory>& devices) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceInventory &one = devices[i], &next = devices[(i + 1) % devices.size()];
    if (!takes_turns(one) || one.kind != next.kind || next.number >= 64) return false;
    if ((one.hands_rows_to >> next.number & 1) == 0) return false;
  }
  return true;
}

bool all_run(const Model& model, const Inventory& inventory, const PlanOptions& options) {
  const KvType kv = options.kv_type.value_or(default_kv_type(model, options.f32_weights));
  return kv == KvType::f16 && gpu::layers_may_run(model) &&
         std::all_of(inventory.devices.begin(), inventory.devices.end(),
                     [](const DeviceInventory& device) { return device.runs; });
}

// At least: what the fastest memory takes to read its weights.
double token_s(const Model& model, const Inventory& inventory) {
  double bytes_per_s = 1.0;
  for (const DeviceInventory& device : inventory.devices)
    bytes_per_s = std::max(bytes_per_s, device.bytes_per_s);
  return decode_bytes(model, {}) / bytes_per_s;
}

// A budget becomes memory that the ranges share by need, as they do what is free.
void share_budget(DeviceInventory& device) {
  device.memory_free = *device.budget;
  device.memory_total = std::max(device.memory_total, *device.budget);
  device.most = std::exchange(device.budget, std::nullopt);
}

}  // namespace

Status check_turns(const Model& model, const Inventory& inventory, int turns) {
  if (turns < 2) return {};
  const auto& devices = inventory.devices;
  if (devices.size() < 2)
    return Error::make(ErrorCode::invalid,
                       "--target-turns {}: GPUs take turns with each other; name several with "
                       "--target-devices",
                       turns);
  const auto other = std::find_if_not(devices.begin(), devices.end(), takes_turns);
  if (other != devices.end())
    return Error::make(ErrorCode::invalid,
                       "--target-turns {}: {} takes no turns; only GPUs of this process do that "
                       "have memory of their own",
                       turns, other->name);
  const std::ptrdiff_t parts = layer_parts(model);
  const auto most = parts / static_cast<std::ptrdiff_t>(devices.size());
  if (turns <= most) return {};
  return Error::make(ErrorCode::invalid,
                     "--target-turns {}: the layers have {} parts, which give {} GPUs at most {} "
                     "ranges each",
                     turns, parts, devices.size(), most);
}

Inventory with_turns(const Inventory& inventory, int turns) {
  Inventory turned = inventory;
  turned.devices.clear();
  for (int turn = 0; turn < turns; ++turn)
    for (DeviceInventory device : inventory.devices) {
      if (turns > 1 && device.budget) share_budget(device);
      turned.devices.push_back(std::move(device));
    }
  return turned;
}

int free_turns(const Model& model, const Inventory& inventory, const PlanOptions& options) {
  const auto n = static_cast<int>(inventory.devices.size());
  if (n < 2 || !hand_rows_round(inventory.devices)) return 1;
  const double crossing_s = all_run(model, inventory, options) ? kRunCrossing_s : kCrossing_s;
  const double crossings = kMostOfToken * token_s(model, inventory) / crossing_s;
  const int most = std::min({kMostTurns, model.spec().n_layer() / (kLeastLayers * n),
                             static_cast<int>(layer_parts(model)) / n});
  return std::max(1, static_cast<int>(std::min<double>(most, crossings / n)));
}

}  // namespace tessera
