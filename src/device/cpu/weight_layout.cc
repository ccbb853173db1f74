#include "device/cpu/weight_layout.h"

#include "base/checked.h"
#include "device/cpu/packed_matrix.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kAlignment = 64;

WeightForm form_of(TensorRole role) {
  switch (role) {
    case TensorRole::token_embd:
    case TensorRole::output:
    case TensorRole::attn_q:
    case TensorRole::attn_k:
    case TensorRole::attn_v:
    case TensorRole::attn_output:
    case TensorRole::attn_gate:
    case TensorRole::gdn_qkv:
    case TensorRole::gdn_gate:
    case TensorRole::gdn_out:
    case TensorRole::dense_gate:
    case TensorRole::dense_up:
    case TensorRole::dense_down:
    case TensorRole::moe_gate:
    case TensorRole::moe_up:
    case TensorRole::moe_down:
      return WeightForm::packed;
    case TensorRole::gdn_alpha:
    case TensorRole::gdn_beta:
    case TensorRole::router:
      return WeightForm::packed_f32;
    case TensorRole::gdn_conv:
      return WeightForm::conv_taps;
    default:
      return WeightForm::vector;
  }
}

}  // namespace

bool in_shard(const TensorSlice& slice, const ModelSpec& spec, const ShardLayout& shard) {
  switch (slice.role) {
    case TensorRole::token_embd:
      return shard.embedding || (shard.head && spec.tied_head);
    case TensorRole::output:
    case TensorRole::output_norm:
      return shard.head;
    default:
      return slice.layer >= shard.first_layer && slice.layer < shard.end_layer;
  }
}

WeightLayout weight_layout(std::span<const TensorSlice> tensors, const ModelSpec& spec,
                           const ShardLayout& shard) {
  WeightLayout layout;
  for (const TensorSlice& slice : tensors) {
    if (!in_shard(slice, spec, shard)) continue;
    WeightEntry entry{.slice = &slice, .form = form_of(slice.role), .type = slice.type};
    if (entry.form != WeightForm::packed) entry.type = BlockType::F32;
    entry.matrix_bytes = entry.form == WeightForm::vector || entry.form == WeightForm::conv_taps
                             ? slice.rows * slice.cols * std::int64_t{sizeof(float)}
                             : packed_bytes(entry.type, slice.rows, slice.cols);
    entry.matrix_bytes = round_up(entry.matrix_bytes, kAlignment);
    entry.offset = layout.bytes;
    layout.bytes += entry.bytes();
    layout.entries.push_back(entry);
  }
  return layout;
}

}  // namespace tessera::cpu
