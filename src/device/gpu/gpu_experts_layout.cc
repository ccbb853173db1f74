// What experts on a GPU without their layers take.
#include <algorithm>

#include "base/checked.h"
#include "device/gpu/gpu_layout.h"

namespace tessera {

GpuFootprint gpu_experts_footprint(const Model& model, const ShardLayout& shard) {
  const std::vector<TensorSlice> tensors = gpu::expert_slices(model.tensors(), shard);
  const gpu::WeightLayout weights = gpu::weight_layout(tensors, model.spec(), shard);
  gpu::ExpertsScratch scratch;
  return {.weights = weights.bytes,
          .scratch = gpu::carve_experts_scratch(model.spec(), shard, weights, nullptr, scratch)};
}

}  // namespace tessera

namespace tessera::gpu {

std::vector<TensorSlice> expert_slices(std::span<const TensorSlice> tensors,
                                       const ShardLayout& shard) {
  std::vector<TensorSlice> slices;
  for (const TensorSlice& slice : tensors)
    if (tensor_use(slice.role) == TensorUse::expert_matrix && slice.layer >= shard.first_layer &&
        slice.layer < shard.end_layer && shard.layer_experts(slice.layer) != nullptr)
      slices.push_back(slice);
  return slices;
}

std::int64_t carve_experts_scratch(const ModelSpec& spec, const ShardLayout& shard,
                                   const WeightLayout& weights, std::byte* base,
                                   ExpertsScratch& out) {
  const std::int64_t rows = shard.max_rows, embd = spec.n_embd;
  out.used = most_experts_used(spec);
  out.workspace_bytes = 0;
  for (int l = shard.first_layer; l < shard.end_layer; ++l) {
    const LayerSpec& layer = spec.layers[static_cast<std::size_t>(l)];
    if (!layer.moe || shard.layer_experts(l) == nullptr) continue;
    FfnArgs args{.rows = shard.max_rows, .n_embd = spec.n_embd};
    args.moe = {.n_expert = layer.moe->n_expert,
                .n_used = out.used,
                .n_ff = layer.moe->n_ff,
                .router = layer.moe->router,
                .shape = weights.experts[static_cast<std::size_t>(l - shard.first_layer)].shape};
    out.workspace_bytes =
        std::max(out.workspace_bytes, static_cast<std::int64_t>(ffn_workspace(args)));
  }
  std::int64_t used = 0;
  const auto take = [&](std::int64_t bytes) {
    std::byte* const here = base != nullptr ? base + used : nullptr;
    used = saturated_add(used, saturated_round_up(bytes, 256));
    return here;
  };
  constexpr std::int64_t kFloat = sizeof(float);
  out.rows = reinterpret_cast<float*>(take(experts_staging_bytes(spec, shard)));
  out.sums = reinterpret_cast<float*>(take(saturated_mul(rows * embd, kFloat)));
  out.pair_out = reinterpret_cast<float*>(take(saturated_mul(rows * out.used * embd, kFloat)));
  out.workspace = take(out.workspace_bytes);
  return used;
}

std::int64_t experts_staging_bytes(const ModelSpec& spec, const ShardLayout& shard) {
  const std::int64_t row = spec.n_embd + 2 * std::int64_t{most_experts_used(spec)};
  return saturated_mul(shard.max_rows * row, std::int64_t{sizeof(float)});
}

}  // namespace tessera::gpu
