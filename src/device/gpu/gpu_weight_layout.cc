#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/checked.h"
#include "device/gpu/gpu_layout.h"

namespace tessera::gpu {
namespace {

WeightForm gpu_form_of(TensorUse use) {
  switch (use) {
    case TensorUse::matrix:
      return WeightForm::planes;
    case TensorUse::expert_matrix:
      return WeightForm::expert;
    case TensorUse::exact_matrix:
      return WeightForm::planes_f32;
    case TensorUse::conv_taps:
      return WeightForm::conv_taps;
    case TensorUse::vector:
      break;
  }
  return WeightForm::vector;
}

std::int64_t take(std::int64_t& all, std::int64_t bytes) {
  const std::int64_t offset = all;
  all += round_up(bytes, kPlaneAlignment);
  return offset;
}
std::int64_t take(WeightLayout& layout, std::int64_t bytes) {
  return take(layout.bytes, bytes);
}

std::vector<std::int32_t> places_of(const tessera::LayerExperts* away, int count) {
  if (away != nullptr) return expert_places(*away);
  std::vector<std::int32_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The experts of a layer, whose three tensors lie together.
void place_experts(std::span<const TensorSlice> tensors, const ShardLayout& shard, int layer,
                   ExpertArena& experts, WeightLayout& layout) {
  const TensorSlice* parts[3] = {};
  for (const TensorSlice& slice : tensors) {
    if (slice.layer != layer) continue;
    if (slice.role == TensorRole::moe_gate) parts[0] = &slice;
    if (slice.role == TensorRole::moe_up) parts[1] = &slice;
    if (slice.role == TensorRole::moe_down) parts[2] = &slice;
  }
  experts.count = static_cast<int>(parts[0]->matrices);
  experts.shape = expert_shape(parts[0]->type, parts[1]->type, parts[2]->type,
                               static_cast<int>(parts[0]->cols), static_cast<int>(parts[0]->rows));
  experts.places = places_of(shard.layer_lacking(layer), experts.count);
  experts.offset =
      take(layout, experts.shape.bytes * static_cast<std::int64_t>(experts.places.size()));
  experts.table_offset = take(layout, std::int64_t{sizeof(void*)} * experts.count);
  const LayerExperts* away = shard.layer_lacking(layer);
  if (away != nullptr && away->streamed)
    experts.linked_offset = take(layout, std::int64_t{sizeof(void*)} * experts.count);
  const std::int64_t offsets[3] = {0, experts.shape.up_offset, experts.shape.down_offset};
  for (int i = 0; i < 3; ++i)
    layout.entries.push_back({.slice = parts[i],
                              .form = WeightForm::expert,
                              .type = parts[i]->type,
                              .rows = parts[i]->rows,
                              .offset = experts.offset + offsets[i],
                              .stride = experts.shape.bytes,
                              .places = experts.places});
}

// Its first rows with the other weights and the last ones on the host, each part as a matrix of its
// own. Where all are on one side there is one part.
void place_table(WeightEntry entry, const ShardLayout& shard, WeightLayout& layout) {
  const std::int64_t rows = entry.slice->rows, border = shard.table_device_rows.value_or(rows);
  CHECK(border >= 0 && border <= rows && (border == rows || border % kTileRows == 0),
        "{} of {} rows", border, rows);
  const auto place = [&](std::int64_t first, std::int64_t end, bool on_host) {
    if (first == end) return;
    entry.first_row = first;
    entry.rows = end - first;
    entry.stride = plane_layout(entry.type, entry.rows, entry.slice->cols).bytes;
    entry.on_host = on_host;
    entry.offset = take(on_host ? layout.host_bytes : layout.bytes, entry.stride);
    layout.entries.push_back(entry);
  };
  place(0, border, false);
  place(border, rows, true);
}

// A group is what one launch computes and, while it does, what crosses: enough experts to fill the
// processors, and four groups to bridge a layer's mixer, in which none is computed.
constexpr int kStreamGroups = 4;
constexpr int kStreamSlots = kMostPlaces;

void place_stream(const ShardLayout& shard, WeightLayout& layout) {
  StreamLayout& stream = layout.stream;
  int most = 0, count = 0;
  std::int64_t slot_bytes = 0;
  for (std::size_t l = 0; l < shard.experts.size(); ++l) {
    StreamLayout::Layer& layer = stream.layers.emplace_back();
    const LayerExperts& experts = shard.experts[l];
    if (!experts.streamed) continue;
    for (std::size_t e = 0; e < experts.home.size(); ++e)
      if (experts.home[e].is_host()) layer.experts.push_back(static_cast<std::int32_t>(e));
    layer.expert_bytes = layout.experts[l].shape.bytes;
    layer.host_offset = stream.host_bytes;
    const int n = static_cast<int>(layer.experts.size());
    stream.host_bytes += n * layer.expert_bytes;
    most = std::max(most, n);
    count = std::max(count, layout.experts[l].count);
    slot_bytes = std::max(slot_bytes, layer.expert_bytes);
  }
  if (most == 0) {
    stream = {};
    return;
  }
  stream.groups = kStreamGroups;
  stream.group_slots = std::clamp(ceil_div(most, kStreamGroups), 1, kStreamSlots);
  stream.group_bytes = stream.group_slots * slot_bytes;
  stream.offset = take(layout, stream.groups * stream.group_bytes);
  stream.table_offset = take(layout, std::int64_t{sizeof(void*)} * count);
  for (std::int64_t& offset : stream.brought_offset)
    offset = take(layout, kBroughtPlaces * slot_bytes);
}

}  // namespace

WeightLayout weight_layout(std::span<const TensorSlice> tensors, const ModelSpec& spec,
                           const ShardLayout& shard) {
  WeightLayout layout;
  layout.experts.resize(static_cast<std::size_t>(shard.end_layer - shard.first_layer));
  for (const TensorSlice& slice : tensors) {
    if (!in_shard(slice, spec, shard)) continue;
    WeightEntry entry{.slice = &slice,
                      .form = gpu_form_of(tensor_use(slice.role)),
                      .type = slice.type,
                      .rows = slice.rows};
    if (entry.form == WeightForm::expert) {
      if (slice.role == TensorRole::moe_gate)
        place_experts(tensors, shard, slice.layer,
                      layout.experts[static_cast<std::size_t>(slice.layer - shard.first_layer)],
                      layout);
      continue;
    }
    if (slice.role == TensorRole::token_embd && has_table_alone(spec, shard)) {
      place_table(entry, shard, layout);
      continue;
    }
    if (entry.form != WeightForm::planes) entry.type = BlockType::F32;
    entry.stride = entry.form == WeightForm::planes || entry.form == WeightForm::planes_f32
                       ? plane_layout(entry.type, slice.rows, slice.cols).bytes
                       : slice.rows * slice.cols * std::int64_t{sizeof(float)};
    entry.offset = take(layout, entry.stride * slice.matrices);
    layout.entries.push_back(entry);
  }
  place_stream(shard, layout);
  return layout;
}

}  // namespace tessera::gpu
