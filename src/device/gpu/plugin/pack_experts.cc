#include "device/gpu/plugin/pack_experts.h"

#include <atomic>
#include <mutex>
#include <vector>

#include "base/by_threads.h"

namespace tessera::gpu {
namespace {

struct Task {
  const ExpertArena* layer;
  std::span<const WeightEntry* const> parts;  // gate, up, down
  std::int32_t expert;
  std::byte* to;

  void run() const {
    for (const WeightEntry* part : parts) {
      const TensorSlice& slice = *part->slice;
      repack_rows(part->type, slice.data + expert * slice.matrix_stride, slice.rows, slice.cols, 0,
                  row_tiles(slice.rows), to + (part->offset - layer->offset));
    }
  }
};

// The tensors of experts, by layer of the shard.
std::vector<std::vector<const WeightEntry*>> expert_parts(const ShardLayout& shard,
                                                          const WeightLayout& layout) {
  std::vector<std::vector<const WeightEntry*>> parts(layout.experts.size());
  for (const WeightEntry& entry : layout.entries)
    if (entry.form == WeightForm::expert)
      parts[static_cast<std::size_t>(entry.slice->layer - shard.first_layer)].push_back(&entry);
  return parts;
}

}  // namespace

Status pack_experts(const Model& model, const ShardLayout& shard, const WeightLayout& layout,
                    std::span<const PackedExperts> packed, const LoadOptions& options,
                    const LoadProgress& progress) {
  const auto parts = expert_parts(shard, layout);
  std::vector<Task> tasks;
  std::int64_t total = 0;
  for (const PackedExperts& layer : packed) {
    const auto l = static_cast<std::size_t>(layer.layer);
    std::byte* to = layer.to;
    for (const std::int32_t expert : layer.experts) {
      tasks.push_back({&layout.experts[l], parts[l], expert, to});
      to += layout.experts[l].shape.bytes;
    }
    total += to - layer.to;
  }
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> done{0};
  std::mutex mutex;  // progress
  TESSERA_TRY(by_threads(options.threads, [&](const std::atomic<bool>& failed) -> Status {
    for (std::size_t i = next++; i < tasks.size() && !failed; i = next++) {
      tasks[i].run();
      const std::int64_t sum = done += tasks[i].layer->shape.bytes;
      const std::unique_lock turn(mutex, std::try_to_lock);
      if (progress && turn && !progress(sum, total)) return load_cancelled();
    }
    return {};
  }));
  if (options.host.check_intact) return options.host.check_intact(model);
  return {};
}

}  // namespace tessera::gpu
