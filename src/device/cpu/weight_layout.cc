#include "device/cpu/weight_layout.h"

#include "base/checked.h"
#include "device/cpu/packed_matrix.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kAlignment = 64;

// What the tensor is packed as unless every matrix is asked for in f32.
WeightForm cpu_form_of(TensorUse use) {
  switch (use) {
    case TensorUse::matrix:
    case TensorUse::expert_matrix:
      return WeightForm::packed;
    case TensorUse::exact_matrix:
      return WeightForm::packed_f32;
    case TensorUse::conv_taps:
      return WeightForm::conv_taps;
    case TensorUse::vector:
      break;
  }
  return WeightForm::vector;
}

std::int64_t place_count(const TensorSlice& slice, const ShardLayout& shard) {
  const LayerExperts* experts = tensor_use(slice.role) == TensorUse::expert_matrix
                                    ? shard.layer_experts(slice.layer)
                                    : nullptr;
  return experts == nullptr ? slice.matrices : experts->resident() + experts->spare;
}

}  // namespace

WeightLayout weight_layout(std::span<const TensorSlice> tensors, const ModelSpec& spec,
                           const ShardLayout& shard) {
  WeightLayout layout;
  layout.entries.reserve(tensors.size());
  for (const TensorSlice& slice : tensors) {
    if (!in_shard(slice, spec, shard)) continue;
    WeightEntry entry{
        .slice = &slice, .form = cpu_form_of(tensor_use(slice.role)), .type = slice.type};
    if (shard.f32_weights && entry.form == WeightForm::packed) entry.form = WeightForm::packed_f32;
    if (entry.form != WeightForm::packed) entry.type = BlockType::F32;
    entry.matrix_bytes = entry.form == WeightForm::vector || entry.form == WeightForm::conv_taps
                             ? slice.rows * slice.cols * std::int64_t{sizeof(float)}
                             : packed_bytes(entry.type, slice.rows, slice.cols);
    entry.matrix_bytes = round_up(entry.matrix_bytes, kAlignment);
    entry.in_file = stays_in_file(slice, spec, shard);
    entry.places = entry.in_file ? 0 : place_count(slice, shard);
    entry.offset = layout.bytes;
    layout.bytes += entry.bytes();
    layout.entries.push_back(entry);
  }
  return layout;
}

}  // namespace tessera::cpu
