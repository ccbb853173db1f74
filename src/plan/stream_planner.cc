// The part of ShardPlanner that says which experts of the host a GPU may fetch, for steps of many
// rows all that are chosen and for few rows some: all of a shard's or none. For that they lie
// packed in pinned memory of this process, beside the file's pages, from which the host computes
// the others: both must be in memory.
#include <algorithm>

#include "base/checked.h"
#include "plan/shard_planner.h"

namespace tessera {

bool ShardPlanner::may_stream(const ShardPlan& shard) const {
  return options_.expert_stream && !shard.remote && shard.kind != DeviceKind::cpu;
}

void ShardPlanner::stream_experts(ShardPlan& shard) const {
  ShardPlan with = shard;
  for (LayerExperts& layer : with.layout.experts)
    layer.streamed = std::count(layer.home.begin(), layer.home.end(), ExpertHome::host()) > 0;
  set_bytes(with);
  if (with.streamed_bytes == 0 || with.free_bytes() < 0) return;
  const std::optional<std::int64_t> room = pinned_room();
  const std::int64_t taken = saturated_add(with.process_bytes(), with.mapped_bytes);
  if (!room || taken <= *room) shard = std::move(with);
}

// Of this machine's memory, what a GPU's shard may take of it; nothing: nobody has said what there
// is. Beside a CPU device here there is none, since that would hold less for it.
std::optional<std::int64_t> ShardPlanner::pinned_room() const {
  if (!program_) return 0;
  const std::optional<std::int64_t> memory = machine_memory();
  if (!memory) return std::nullopt;
  std::int64_t gpus = 0;
  for (std::size_t i = 0; i < devices_.size(); ++i) gpus += is_gpu_here(i) ? 1 : 0;
  const std::int64_t left = saturated_rest(
      *memory,
      {kept_for_workers_, gpu_workers_, program_->program_bytes, program_->connection_bytes});
  return left / std::max<std::int64_t>(gpus, 1);
}

}  // namespace tessera
