#include "device/shard_tensors.h"

namespace tessera {

TensorUse tensor_use(TensorRole role) {
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
      return TensorUse::matrix;
    case TensorRole::moe_gate:
    case TensorRole::moe_up:
    case TensorRole::moe_down:
      return TensorUse::expert_matrix;
    case TensorRole::gdn_alpha:
    case TensorRole::gdn_beta:
    case TensorRole::router:
      return TensorUse::exact_matrix;
    case TensorRole::gdn_conv:
      return TensorUse::conv_taps;
    default:
      return TensorUse::vector;
  }
}

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

bool has_table_alone(const ModelSpec& spec, const ShardLayout& shard) {
  return shard.embedding && !(shard.head && spec.tied_head);
}

int file_part_count(const ModelSpec& spec, const ShardLayout& shard) {
  return (has_table_alone(spec, shard) ? 1 : 0) + shard.end_layer - shard.first_layer +
         (shard.head ? 1 : 0);
}

bool stays_in_file(const TensorSlice& slice, const ModelSpec& spec, const ShardLayout& shard) {
  const TensorUse use = tensor_use(slice.role);
  if (use != TensorUse::matrix && use != TensorUse::exact_matrix) return false;
  const int before = has_table_alone(spec, shard) ? 1 : 0;
  int part = file_part_count(spec, shard) - 1;  // the head
  if (slice.layer >= 0) {
    part = before + shard.end_layer - 1 - slice.layer;
  } else if (slice.role == TensorRole::token_embd && before == 1) {
    part = 0;
  }
  return part < shard.file_parts;
}

std::vector<std::int32_t> expert_places(const LayerExperts& experts) {
  std::vector<std::int32_t> places;
  for (std::size_t e = 0; e < experts.home.size(); ++e)
    if (experts.home[e].is_resident()) places.push_back(static_cast<std::int32_t>(e));
  places.resize(places.size() + static_cast<std::size_t>(experts.spare), -1);
  return places;
}

}  // namespace tessera
