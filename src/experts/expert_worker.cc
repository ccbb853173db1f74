#include "experts/expert_worker.h"

#include <algorithm>

#include "device/gpu/gpu_layout.h"

namespace tessera {

LayerExperts only_owned(std::vector<bool> owned) {
  LayerExperts experts;
  if (std::find(owned.begin(), owned.end(), true) == owned.end()) return experts;
  // It has nothing for the others, not even in its file.
  for (const bool here : owned)
    experts.home.push_back(here ? ExpertHome::resident() : ExpertHome::worker(0));
  return experts;
}

ExpertSetLayout expert_worker_layout(const ModelSpec& spec, std::span<const LayerExperts> layers,
                                     ExpertHome worker, int max_rows) {
  ExpertSetLayout layout{.max_rows = max_rows, .max_pairs = max_rows * most_experts_used(spec)};
  for (const LayerExperts& layer : layers) {
    std::vector<bool> owned;
    for (const ExpertHome home : layer.home) owned.push_back(home == worker);
    layout.experts.push_back(only_owned(std::move(owned)));
  }
  return layout;
}

ExpertWorkerFootprint expert_worker_footprint(const Model& model, const ExpertSetLayout& layout,
                                              int threads, bool gpu) {
  const bool none = std::all_of(layout.experts.begin(), layout.experts.end(),
                                [](const LayerExperts& layer) { return layer.home.empty(); });
  if (none) return {};
  if (gpu) {
    const GpuFootprint bytes = gpu_experts_footprint(model, gpu_experts_layout(layout));
    return {.weights = bytes.weights, .scratch = bytes.scratch};
  }
  const ExpertSetFootprint set = expert_set_footprint(model, layout, threads);
  constexpr std::int64_t kRow = sizeof(float), kSum = sizeof(double);
  const std::int64_t values = std::int64_t{layout.max_rows} * model.spec().n_embd;
  return {.weights = set.weights, .scratch = set.scratch + (kRow + kSum) * values};
}

std::int64_t gpu_worker_host_bytes(const ModelSpec& spec, int max_rows) {
  // Rows, and sums as they come from the GPU and as they are told.
  constexpr std::int64_t kNumbers = 2 * sizeof(float) + sizeof(double);
  return saturated_add(saturated_mul(std::int64_t{max_rows} * spec.n_embd, kNumbers),
                       gpu::experts_staging_bytes(spec, {.max_rows = max_rows}));
}

ShardLayout gpu_experts_layout(const ExpertSetLayout& layout) {
  return {.first_layer = layout.first_layer,
          .end_layer = layout.end_layer(),
          .embedding = false,
          .head = false,
          .max_rows = layout.max_rows,
          .experts = layout.experts};
}

std::int64_t expert_worker_overhead(const Model& model, std::span<const std::int64_t> expert_bytes,
                                    const ExpertWorkerSize& size) {
  constexpr ExpertHome worker = ExpertHome::worker(0);
  std::vector<LayerExperts> all;
  std::int64_t experts = 0;
  for (std::size_t l = 0; l < model.spec().layers.size(); ++l) {
    const auto& moe = model.spec().layers[l].moe;
    LayerExperts& layer = all.emplace_back();
    if (!moe) continue;
    layer.home.assign(static_cast<std::size_t>(moe->n_expert), worker);
    experts += moe->n_expert * expert_bytes[l];
  }
  const ExpertSetLayout layout = expert_worker_layout(model.spec(), all, worker, size.max_rows);
  const std::int64_t total = expert_worker_footprint(model, layout, size.threads, size.gpu).total();
  return std::max<std::int64_t>(0, total - experts);
}

}  // namespace tessera
