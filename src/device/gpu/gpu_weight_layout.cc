#include <numeric>

#include "base/checked.h"
#include "device/gpu/gpu_layout.h"

namespace tessera::gpu {
namespace {

WeightForm form_of(TensorUse use) {
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

std::int64_t take(WeightLayout& layout, std::int64_t bytes) {
  const std::int64_t offset = layout.bytes;
  layout.bytes += round_up(bytes, kPlaneAlignment);
  return offset;
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
  experts.places = places_of(shard.layer_experts(layer), experts.count);
  experts.offset =
      take(layout, experts.shape.bytes * static_cast<std::int64_t>(experts.places.size()));
  experts.table_offset = take(layout, std::int64_t{sizeof(void*)} * experts.count);
  const std::int64_t offsets[3] = {0, experts.shape.up_offset, experts.shape.down_offset};
  for (int i = 0; i < 3; ++i)
    layout.entries.push_back({.slice = parts[i],
                              .form = WeightForm::expert,
                              .type = parts[i]->type,
                              .offset = experts.offset + offsets[i],
                              .stride = experts.shape.bytes,
                              .places = experts.places});
}

}  // namespace

WeightLayout weight_layout(std::span<const TensorSlice> tensors, const ModelSpec& spec,
                           const ShardLayout& shard) {
  WeightLayout layout;
  layout.experts.resize(static_cast<std::size_t>(shard.end_layer - shard.first_layer));
  for (const TensorSlice& slice : tensors) {
    if (!in_shard(slice, spec, shard)) continue;
    WeightEntry entry{.slice = &slice, .form = form_of(tensor_use(slice.role)), .type = slice.type};
    if (entry.form == WeightForm::expert) {
      if (slice.role == TensorRole::moe_gate)
        place_experts(tensors, shard, slice.layer,
                      layout.experts[static_cast<std::size_t>(slice.layer - shard.first_layer)],
                      layout);
      continue;
    }
    if (entry.form != WeightForm::planes) entry.type = BlockType::F32;
    entry.stride = entry.form == WeightForm::planes || entry.form == WeightForm::planes_f32
                       ? plane_layout(entry.type, slice.rows, slice.cols).bytes
                       : slice.rows * slice.cols * std::int64_t{sizeof(float)};
    entry.offset = take(layout, entry.stride * slice.matrices);
    layout.entries.push_back(entry);
  }
  return layout;
}

}  // namespace tessera::gpu
