// The part of ShardPlanner that counts what processes take of this machine's memory besides the
// shards that lie in it: GPUs' shards take buffers of their processes, and this process is a
// program. A CPU device here is charged with both; without one they are taken from what is free.
#include <algorithm>

#include "base/checked.h"
#include "device/gpu/gpu_layout.h"
#include "plan/expert_workers.h"
#include "plan/footprint.h"
#include "plan/shard_planner.h"

namespace tessera {

bool ShardPlanner::is_gpu_here(std::size_t device) const {
  return !devices_[device].remote && devices_[device].kind != DeviceKind::cpu;
}

bool ShardPlanner::is_gpu_worker_here(std::size_t device) const {
  const DeviceInventory& on = devices_[device];
  return on.remote && on.here && on.kind != DeviceKind::cpu;
}

// One behind the last where there is none.
std::size_t ShardPlanner::first_cpu_here() const {
  const auto is_cpu_here = [](const DeviceInventory& on) {
    return !on.remote && on.kind == DeviceKind::cpu;
  };
  const auto first = std::find_if(devices_.begin(), devices_.end(), is_cpu_here);
  return static_cast<std::size_t>(first - devices_.begin());
}

// The most that any cut makes of it, so that each shard is planned beside it.
void ShardPlanner::size_processes() {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const bool here = is_gpu_here(i), worker = is_gpu_worker_here(i);
    if (!here && !worker) continue;
    const std::int64_t buffers = most_buffers(i);
    if (here) gpu_bytes_ = saturated_add(gpu_bytes_, buffers);
    if (worker) gpu_workers_ = saturated_sum({gpu_workers_, buffers, kWorkerBytes});
  }
  if (first_cpu_here() < devices_.size()) return;
  program_ = ProgramPlan{.program_bytes = sizes_.process_bytes, .gpu_bytes = gpu_bytes_};
  const bool all_remote =
      std::all_of(devices_.begin(), devices_.end(), [](const auto& on) { return on.remote; });
  // No shard here has an expert away, so no worker of experts is connected to.
  if (all_remote)
    program_->connection_bytes = connections_here(std::vector<bool>(workers_.size(), false));
}

// Of a GPU's shard, whatever its layers and whoever has their experts.
std::int64_t ShardPlanner::most_buffers(std::size_t device) const {
  const DeviceInventory& on = devices_[device];
  ShardPlan most;
  most.remote = on.remote;
  most.kind = on.kind;
  most.threads = on.threads;
  most.layout = layout({0, spec_.n_layer()});
  most.layout.embedding = device == 0;
  most.layout.head = device + 1 == devices_.size();
  const bool leave =
      sizes_.leave != Leave::nothing || options_.expert_resident.value_or(100.0) < 100.0;
  if (leave && on.has_file && gpu_experts_may_leave(spec_))
    for (const LayerSpec& layer : spec_.layers) {
      std::vector<ExpertHome>& home = most.layout.experts.emplace_back().home;
      if (!layer.moe) continue;
      home.assign(static_cast<std::size_t>(layer.moe->n_expert), ExpertHome::host());
      for (std::size_t w = 0; !on.remote && w < may_serve_.size() && w < home.size(); ++w)
        if (may_serve_[w]) home[w] = ExpertHome::worker(static_cast<int>(w));
    }
  set_buffers(most);
  most.connection_bytes = connection_bytes(static_cast<int>(device), may_serve_);
  if (devices_.size() > 1 && !on.remote) most.handoff_bytes = handoff_bytes(spec_, most.layout);
  return most.buffer_bytes();
}

// What GPUs' shards take of this process.
std::int64_t ShardPlanner::gpu_bytes(const std::vector<ShardPlan>& shards) const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i)
    if (is_gpu_here(i)) bytes = saturated_add(bytes, shards[i].process_bytes());
  return bytes;
}

// Of experts, in this machine's memory.
std::int64_t ShardPlanner::workers_here(std::span<const ExpertWorkerPlan> workers) const {
  std::int64_t bytes = 0;
  for (const ExpertWorkerPlan& worker : workers)
    if (worker.here) bytes = saturated_add(bytes, worker.machine_bytes());
  return bytes;
}

// In this machine's memory, of what no device in it is charged with.
std::int64_t ShardPlanner::besides(const std::vector<ShardPlan>& shards,
                                   std::span<const ExpertWorkerPlan> workers) const {
  std::int64_t bytes = workers_here(workers);
  for (std::size_t i = 0; i < shards.size(); ++i)
    if (is_gpu_worker_here(i))
      bytes = saturated_sum({bytes, shards[i].process_bytes(), shards[i].host_bytes});
  return bytes;
}

std::int64_t ShardPlanner::most_besides() const {
  return saturated_add(gpu_workers_, program_ ? program_->total_bytes() : 0);
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
  program.gpu_bytes = gpu_bytes(shards);
  program.budget_bytes = machine_memory();
  if (!program.budget_bytes) return program;
  std::int64_t& left = *program.budget_bytes;
  left = saturated_rest(left,
                        {besides(shards, plan_expert_workers(model_, workers_, shards, jobs()))});
  for (std::size_t i = 0; i < shards.size(); ++i)
    if (devices_[i].memory == kHostMemory) left = saturated_rest(left, {shards[i].charged_bytes()});
  return program;
}

Error ShardPlanner::program_lacks(const ProgramPlan& program) const {
  const std::int64_t free = *machine_memory(), left = *program.budget_bytes;
  const std::string others = left < free ? fmt::format(", of which the others need {}",
                                                       format_bytes(saturated_rest(free, {left})))
                                         : "";
  return Error::make(ErrorCode::exhausted,
                     "this process lacks {}: program {}, connections {} and buffers of GPUs {}, "
                     "against {} of free memory{}",
                     format_bytes(saturated_rest(program.total_bytes(), {left})),
                     format_bytes(program.program_bytes), format_bytes(program.connection_bytes),
                     format_bytes(program.gpu_bytes), format_bytes(free), others);
}

std::string ShardPlanner::enough_for_program(const Ends& ends) const {
  const std::optional<ProgramPlan> own = program(shards(ends));
  if (!own || own->fits()) return {};
  const std::int64_t lacks = saturated_rest(own->total_bytes(), {*own->budget_bytes});
  return fmt::format("{} MiB of free memory for this process",
                     ceil_div(saturated_add(*machine_memory(), lacks), std::int64_t{1} << 20));
}

}  // namespace tessera
