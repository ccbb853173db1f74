#include "device/gpu/gpu_layout.h"

#include <algorithm>

#include "base/check.h"
#include "base/checked.h"

namespace tessera {

Status gpu_supports(const ModelSpec& spec) {
  for (int l = 0; l < spec.n_layer(); ++l) {
    const char* lack =
        gpu::unsupported(spec, spec.layers[static_cast<std::size_t>(l)], gpu::KvFormat::f16);
    if (lack != nullptr)
      return Error::make(ErrorCode::unsupported, "layer {} on a GPU: {}", l, lack);
  }
  return {};
}

GpuFootprint gpu_footprint(const Model& model, const ShardLayout& shard) {
  const ModelSpec& spec = model.spec();
  const gpu::StateLayout state = gpu::state_layout(spec, shard);
  const gpu::WeightLayout weights = gpu::weight_layout(model.tensors(), spec, shard);
  gpu::Scratch scratch;
  return {.weights = weights.bytes,
          .kv = state.kv_bytes(shard),
          .recurrent = state.slot_bytes(shard),
          .scratch = gpu::carve_scratch(spec, shard, weights, nullptr, scratch)};
}

std::vector<std::int64_t> gpu_expert_bytes(const Model& model) {
  const ShardLayout all{.end_layer = model.spec().n_layer()};
  std::vector<std::int64_t> bytes;
  for (const gpu::ExpertArena& layer :
       gpu::weight_layout(model.tensors(), model.spec(), all).experts)
    bytes.push_back(layer.count > 0 ? layer.shape.bytes : 0);
  return bytes;
}

std::int64_t gpu_table_bytes(const Model& model, const ShardLayout& shard) {
  if (!shard.table_device_rows) return 0;
  return gpu::weight_layout(model.tensors(), model.spec(), shard).host_bytes;
}

int gpu_table_rows_within(const Model& model, std::int64_t bytes) {
  const std::span<const TensorSlice> tensors = model.tensors();
  const auto table = std::find_if(tensors.begin(), tensors.end(), [](const TensorSlice& slice) {
    return slice.role == TensorRole::token_embd;
  });
  CHECK(table != tensors.end(), "every model has an embedding table");
  const auto rows = [&](std::int64_t tiles) {
    return std::min(tiles * gpu::kTileRows, table->rows);
  };
  std::int64_t fit = 0, too_many = gpu::row_tiles(table->rows) + 1;
  while (too_many - fit > 1) {
    const std::int64_t tiles = fit + (too_many - fit) / 2;
    const bool fits = gpu::plane_layout(table->type, rows(tiles), table->cols).bytes <= bytes;
    (fits ? fit : too_many) = tiles;
  }
  return static_cast<int>(rows(fit));
}

std::int64_t gpu_streamed_bytes(const Model& model, const ShardLayout& shard) {
  const bool streams = std::any_of(shard.experts.begin(), shard.experts.end(),
                                   [](const LayerExperts& layer) { return layer.streamed; });
  if (!streams) return 0;
  return gpu::weight_layout(model.tensors(), model.spec(), shard).stream.host_bytes;
}

bool gpu_experts_may_leave(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers)
    if (layer.moe && (layer.moe->post_norm || layer.ffn_post_norm || layer.layer_scale))
      return false;
  return true;
}

}  // namespace tessera

namespace tessera::gpu {

KvFormat kv_format(KvType type) {
  switch (type) {
    case KvType::f32:
      return KvFormat::f32;
    case KvType::q8_0:
      return KvFormat::q8_0;
    case KvType::f16:
      break;
  }
  return KvFormat::f16;
}

StateLayout state_layout(const ModelSpec& spec, const ShardLayout& shard) {
  StateLayout layout;
  const std::size_t n_layer = spec.layers.size();
  layout.kv.resize(n_layer);
  layout.slot_offset.assign(n_layer, -1);
  const auto mine = [&](int l) { return l >= shard.first_layer && l < shard.end_layer; };

  const std::vector<KvGroup> groups = kv_groups(spec);
  layout.page_bytes.assign(groups.size(), 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const int l : groups[g].layers) {
      if (!mine(l)) continue;
      const AttentionSpec& a = *spec.layers[static_cast<std::size_t>(l)].attention();
      LayerKv& kv = layout.kv[static_cast<std::size_t>(l)];
      kv.geometry = {a.n_kv_head, a.head_dim_k, a.head_dim_v, kv_format(shard.kv_type)};
      kv.group = static_cast<int>(g);
      kv.offset = layout.page_bytes[g];
      layout.page_bytes[g] += kv_layer_page_bytes(kv.geometry);
    }
    layout.page_bytes[g] = round_up(layout.page_bytes[g], kPlaneAlignment);
  }
  for (int l = 0; l < static_cast<int>(n_layer); ++l) {
    const auto i = static_cast<std::size_t>(l);
    if (!mine(l)) continue;
    // A layer that attends over another layer's KV reads it where that layer keeps it.
    const AttentionSpec* a = spec.layers[i].attention();
    if (a != nullptr && a->kv_source >= 0)
      layout.kv[i] = layout.kv[static_cast<std::size_t>(a->kv_source)];
    if (const GatedDeltaSpec* g = spec.layers[i].gated_delta()) {
      layout.slot_offset[i] = layout.slot_floats;
      layout.slot_floats += round_up<std::int64_t>(delta_state_floats(*g), 64);
    }
  }
  return layout;
}

std::int64_t StateLayout::kv_bytes(const ShardLayout& shard) const {
  std::int64_t bytes = 0;
  for (std::size_t g = 0; g < page_bytes.size(); ++g)
    bytes = saturated_add(bytes, saturated_mul<std::int64_t>(page_bytes[g], shard.kv_pages[g]));
  return bytes;
}

std::int64_t StateLayout::slot_bytes(const ShardLayout& shard) const {
  return saturated_mul(saturated_mul<std::int64_t>(slot_floats, shard.slots),
                       std::int64_t{sizeof(float)});
}

std::int64_t table_stride(const ShardLayout& shard) {
  std::int64_t entries = 1;
  for (const int pages : shard.kv_pages) entries = std::max<std::int64_t>(entries, pages);
  if (shard.context > 0) entries = ceil_div(shard.context, kPageTokens);
  return round_up<std::int64_t>(entries, 4);
}

}  // namespace tessera::gpu
