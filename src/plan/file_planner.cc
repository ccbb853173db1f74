// The part of ShardPlanner that leaves weights of a CPU device in the model's file.
#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "device/gpu/gpu_layout.h"
#include "device/shard_tensors.h"
#include "plan/shard_planner.h"

namespace tessera {
namespace {

// Of the weights that stay in the file by ShardLayout::file_parts, as they lie there.
std::int64_t bytes_in_file(const Model& model, const ShardLayout& layout) {
  std::int64_t bytes = 0;
  for (const TensorSlice& slice : model.tensors())
    if (in_shard(slice, model.spec(), layout) && stays_in_file(slice, model.spec(), layout))
      bytes += slice.rows * row_bytes(slice.type, slice.cols);
  return bytes;
}

// "embedding, layers 3-7".
std::string parts_text(const ModelSpec& spec, const ShardLayout& layout) {
  std::string text;
  int left = layout.file_parts;
  const int others = layout.end_layer - layout.first_layer + (layout.head ? 1 : 0);
  if (file_part_count(spec, layout) > others && left-- > 0) text = "embedding";
  const int layers = std::clamp(left, 0, layout.end_layer - layout.first_layer);
  if (layers > 0)
    text += fmt::format("{}layers {}-{}", text.empty() ? "" : ", ", layout.end_layer - layers,
                        layout.end_layer - 1);
  if (left > layers) text += ", head";
  return text;
}

}  // namespace

// A GPU without memory of its own would gain nothing.
bool ShardPlanner::may_leave_table(const DeviceInventory& device) {
  return device.kind != DeviceKind::cpu && !device.remote && device.memory != kHostMemory;
}

// As many rows as the device lacks room for; no more than the host has room for beside buffers of
// experts, which may leave next.
void ShardPlanner::leave_table(const DeviceInventory& device, ShardPlan& shard) const {
  if (shard.free_bytes() >= 0 || sizes_.leave == Leave::nothing ||
      options_.table != PlanOptions::Table::automatic || !may_leave_table(device) ||
      !has_table_alone(spec_, shard.layout) || shard.layout.table_device_rows)
    return;
  ShardPlan with = shard;
  with.layout.table_device_rows = 0;
  set_bytes(with);
  int stay = gpu_table_rows_within(model_, saturated_add(with.table_bytes, shard.free_bytes()));
  if (const std::optional<std::int64_t> room = pinned_room()) {
    const std::int64_t others =
        std::max(with.process_bytes() - with.table_bytes, with.experts > 0 ? gpu_bytes_ : 0);
    const int most = gpu_table_rows_within(model_, saturated_rest(*room, {others}));
    stay = std::max(stay, round_up(spec_.n_vocab - most, gpu::kTileRows));
  }
  if (stay >= spec_.n_vocab) return;
  with.layout.table_device_rows = stay;
  set_bytes(with);
  shard = std::move(with);
}

bool ShardPlanner::may_leave_weights(const DeviceInventory& device) {
  return device.kind == DeviceKind::cpu && device.has_file;
}

// Where experts at their floor are still too much: none is resident, and as few parts of the other
// weights stay in the file as are enough; what that leaves of the budget is for experts again.
void ShardPlanner::leave_weights(ShardPlan& shard, Residents wanted,
                                 std::vector<std::int64_t>& room) const {
  if (shard.free_bytes() >= 0) return;
  ShardPlan least = shard;
  ExpertLoad load = expert_load(shard);
  for (ExpertLayerLoad& layer : load.layers) layer.floor = 0;
  const bool choose_experts =
      !options_.expert_resident && least.experts + least.experts_host + least.experts_worker > 0;
  if (choose_experts) {
    std::vector<std::int64_t> left = room;
    set_experts(load, std::vector<int>(load.layers.size(), 0), left, least);
  }
  const int parts = file_part_count(spec_, least.layout);
  if (wanted == Residents::least) least.layout.file_parts = parts;
  for (set_bytes(least); least.free_bytes() < 0 && least.layout.file_parts < parts;) {
    ++least.layout.file_parts;
    set_bytes(least);
  }
  // The room to pack in may be more than a small model's weights.
  if (least.free_bytes() < 0 && least.total_bytes() >= shard.total_bytes()) return;
  if (choose_experts && wanted == Residents::best)
    if (const auto residents = residents_within(load, least.free_bytes()))
      set_experts(load, *residents, room, least);
  least.file_bytes = bytes_in_file(model_, least.layout);
  least.file_parts = parts_text(spec_, least.layout);
  shard = std::move(least);
}

}  // namespace tessera
