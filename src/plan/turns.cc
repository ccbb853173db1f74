#include "plan/turns.h"

#include <algorithm>

#include "device/gpu/gpu_layout.h"

namespace tessera {
namespace {

// With more the wait is shorter still, but each range's scratch takes memory of its own
// (docs/results-gpu.md, "Two GPUs in turns").
constexpr int kFreeTurns = 4;
// A range of one layer has hardly begun when it ends.
constexpr int kLeastLayers = 2;

bool is_gpu_here(const DeviceInventory& device) {
  return device.kind != DeviceKind::cpu && !device.remote;
}

// Whether each hands its rows to the next one, and the last to the first.
bool hand_rows_round(const std::vector<DeviceInventory>& devices) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceInventory &one = devices[i], &next = devices[(i + 1) % devices.size()];
    if (!is_gpu_here(one) || one.kind != next.kind || next.number >= 64) return false;
    if ((one.hands_rows_to >> next.number & 1) == 0) return false;
  }
  return true;
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
  const auto other = std::find_if_not(devices.begin(), devices.end(), is_gpu_here);
  if (other != devices.end())
    return Error::make(ErrorCode::invalid,
                       "--target-turns {}: {} takes no turns; only GPUs of this process do", turns,
                       other->name);
  const int n_layer = model.spec().n_layer();
  const int most = n_layer / static_cast<int>(devices.size());
  if (turns <= most) return {};
  return Error::make(ErrorCode::invalid,
                     "--target-turns {}: {} layers give {} GPUs at most {} ranges each", turns,
                     n_layer, devices.size(), most);
}

Inventory with_turns(const Inventory& inventory, int turns) {
  Inventory turned = inventory;
  turned.devices.clear();
  for (int turn = 0; turn < turns; ++turn)
    for (DeviceInventory device : inventory.devices) {
      if (device.budget) *device.budget /= turns;
      turned.devices.push_back(std::move(device));
    }
  return turned;
}

int free_turns(const Model& model, const Inventory& inventory, const PlanOptions& options) {
  const auto n = static_cast<int>(inventory.devices.size());
  if (n < 2 || !hand_rows_round(inventory.devices) || !gpu::layers_may_run(model)) return 1;
  const KvType kv = options.kv_type.value_or(default_kv_type(model, options.f32_weights));
  if (kv != KvType::f16 || options.f32_weights) return 1;
  return std::clamp(model.spec().n_layer() / (kLeastLayers * n), 1, kFreeTurns);
}

}  // namespace tessera
