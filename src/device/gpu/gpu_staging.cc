#include <algorithm>

#include "base/checked.h"
#include "device/gpu/gpu_layout.h"

namespace tessera {

gpu::PostsLayout gpu::posts_layout(const ModelSpec& spec, const ShardLayout& shard) {
  PostsLayout layout{.rows = std::min(shard.max_rows, kDecodeRows),
                     .n_embd = spec.n_embd,
                     .used = most_experts_used(spec)};
  const std::int64_t layers = shard.end_layer - shard.first_layer;
  const std::int64_t word = sizeof(std::int32_t), rows = layout.rows;
  std::int64_t at = 0;
  const auto place = [&](std::int64_t words) {
    const std::int64_t here = at;
    at += round_up<std::int64_t>(words * word, 256);
    return here;
  };
  layout.given_up = place(1);
  layout.posted = place(layers * rows);
  layout.answered = place(layers * rows);
  layout.ids = place(layers * rows * layout.used);
  layout.weights = place(layers * rows * layout.used);
  layout.x = place(rows * spec.n_embd);
  layout.sums = place(rows * spec.n_embd);
  layout.foreseen = place(layers * rows);
  layout.foreseen_ids = place(layers * rows * layout.used);
  layout.bytes = at;
  return layout;
}

GpuStaging gpu_staging(const ModelSpec& spec, const ShardLayout& shard) {
  constexpr std::int64_t kFloat = sizeof(float);
  const std::int64_t rows = shard.max_rows;
  const std::int64_t row_bytes = rows * spec.n_embd * kFloat;
  const std::int64_t logit_rows = shard.head ? shard.max_logit_rows : 0;
  const auto has_spare = [](const LayerExperts& experts) { return experts.spare > 0; };
  const bool moves = std::any_of(shard.experts.begin(), shard.experts.end(), has_spare);
  std::int64_t used = 0;
  for (const LayerSpec& layer : spec.layers)
    if (layer.moe) used = std::max<std::int64_t>(used, layer.moe->n_used);
  return {.logits = logit_rows * spec.n_vocab * kFloat,
          .chosen = kMostUnderWay * logit_rows * std::int64_t{sizeof(gpu::ChosenRow)},
          .hidden = row_bytes,
          .routing = 2 * rows * used * kFloat,
          .inputs = gpu::input_ints(spec, shard) * std::int64_t{sizeof(std::int32_t)} +
                    gpu::kMostChanges * logit_rows * std::int64_t{sizeof(LogitChange)},
          .expert_rows = shard.experts.empty() ? 0 : row_bytes,
          .posts = shard.experts.empty() ? 0 : gpu::posts_layout(spec, shard).bytes,
          .moves = moves ? gpu::kPackedPieceBytes : 0};
}

std::int64_t GpuStaging::total() const {
  return saturated_sum({logits, chosen, hidden, routing, gpu::kInputBlocks * inputs,
                        2 * expert_rows, posts, 2 * moves});
}

}  // namespace tessera
