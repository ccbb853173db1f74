// The part of ShardPlanner that charges this process to its machine's memory, where no CPU device
// here has a budget for it.
#include <algorithm>

#include "base/checked.h"
#include "plan/expert_workers.h"
#include "plan/shard_planner.h"

namespace tessera {

// No cut changes it, so that each shard is planned beside it.
void ShardPlanner::size_program() {
  const auto is_cpu_here = [](const DeviceInventory& on) {
    return !on.remote && on.kind == DeviceKind::cpu;
  };
  if (std::any_of(devices_.begin(), devices_.end(), is_cpu_here)) return;
  program_ = ProgramPlan{.program_bytes = sizes_.process_bytes};
  const bool all_remote =
      std::all_of(devices_.begin(), devices_.end(), [](const auto& on) { return on.remote; });
  // No shard here has an expert away, so no worker of experts is connected to.
  if (all_remote)
    program_->connection_bytes = connections_here(std::vector<bool>(workers_.size(), false));
}

// What is free of this machine's.
std::optional<std::int64_t> ShardPlanner::machine_memory() const {
  if (inventory_.memory_total > 0)
    return std::clamp<std::int64_t>(inventory_.memory_free, 0, inventory_.memory_total);
  for (std::size_t i = 0; i < devices_.size(); ++i)
    if (devices_[i].memory == kHostMemory) return free_memory(static_cast<int>(i));
  return std::nullopt;
}

std::optional<ProgramPlan> ShardPlanner::program(const std::vector<ShardPlan>& shards) const {
  if (!program_) return std::nullopt;
  ProgramPlan program = *program_;
  program.budget_bytes = machine_memory();
  if (!program.budget_bytes) return program;
  std::int64_t& left = *program.budget_bytes;
  left = saturated_rest(left,
                        {workers_here(plan_expert_workers(model_, workers_, shards, job_rows()))});
  for (std::size_t i = 0; i < shards.size(); ++i)
    if (devices_[i].memory == kHostMemory)
      left = saturated_rest(left, {shards[i].total_bytes(), shards[i].host_bytes});
  return program;
}

// Of experts, in this machine's memory.
std::int64_t ShardPlanner::workers_here(std::span<const ExpertWorkerPlan> workers) const {
  std::int64_t bytes = 0;
  for (const ExpertWorkerPlan& worker : workers)
    if (worker.here) bytes = saturated_sum({bytes, worker.total_bytes(), worker.host_bytes});
  return bytes;
}

Error ShardPlanner::program_lacks(const ProgramPlan& program) const {
  const std::int64_t free = *machine_memory(), left = *program.budget_bytes;
  const std::string others =
      left < free ? fmt::format(", of which the others need {}", format_bytes(free - left)) : "";
  return Error::make(ErrorCode::exhausted,
                     "this process lacks {}: program {} and connections {}, against {} of free "
                     "memory{}",
                     format_bytes(saturated_rest(program.total_bytes(), {left})),
                     format_bytes(program.program_bytes), format_bytes(program.connection_bytes),
                     format_bytes(free), others);
}

std::string ShardPlanner::enough_for_program(const Ends& ends) const {
  const std::optional<ProgramPlan> own = program(shards(ends));
  if (!own || own->fits()) return {};
  const std::int64_t lacks = saturated_rest(own->total_bytes(), {*own->budget_bytes});
  return fmt::format("{} MiB of free memory for this process",
                     ceil_div(saturated_add(*machine_memory(), lacks), std::int64_t{1} << 20));
}

}  // namespace tessera
