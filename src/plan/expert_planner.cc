// The part of ShardPlanner that says which experts of a shard's layers its device holds.
#include <algorithm>

#include "base/checked.h"
#include "device/gpu/gpu_layout.h"
#include "experts/expert_reads.h"
#include "experts/expert_worker.h"
#include "plan/expert_workers.h"
#include "plan/shard_planner.h"

namespace tessera {
namespace {

// How likely a row is to choose each expert: as often as it was chosen, or all alike.
std::vector<double> chances(const MoeSpec& moe, const std::vector<double>* counts) {
  const auto n = static_cast<std::size_t>(moe.n_expert);
  double sum = 0.0;
  if (counts != nullptr && counts->size() == n)
    for (const double count : *counts) sum += count;
  if (sum <= 0.0) return std::vector<double>(n, static_cast<double>(moe.n_used) / moe.n_expert);
  std::vector<double> chance;
  for (const double count : *counts) chance.push_back(std::min(1.0, moe.n_used * count / sum));
  return chance;
}

}  // namespace

void ShardPlanner::load_layers() {
  const auto on_gpu = [](const auto& on) { return on.kind != DeviceKind::cpu; };
  const bool gpus = std::any_of(devices_.begin(), devices_.end(), on_gpu) ||
                    std::any_of(workers_.begin(), workers_.end(), on_gpu);
  if (gpus) gpu_expert_bytes_ = gpu_expert_bytes(model_);
  for (std::size_t l = 0; l < spec_.layers.size(); ++l) {
    ExpertLayerLoad& layer = layer_loads_.emplace_back();
    const auto& moe = spec_.layers[l].moe;
    expert_file_bytes_.push_back(moe ? expert_file_bytes(model_, static_cast<int>(l)) : 0);
    if (!moe) continue;
    const bool known = l < options_.expert_counts.size();
    layer.chance = chances(*moe, known ? &options_.expert_counts[l] : nullptr);
    layer.expert_bytes = expert_bytes_[l];
    layer.floor = std::min(moe->n_used, moe->n_expert);
    layer.order = by_chance(layer.chance);
  }
}

// What each worker has room for, beside what it needs to compute any expert. Of this machine's
// memory they may come to take their budgets, but no more than all experts.
void ShardPlanner::size_workers() {
  std::int64_t all = 0;
  for (std::size_t l = 0; l < expert_bytes_.size(); ++l)
    if (const auto& moe = spec_.layers[l].moe)
      all = saturated_add(all, saturated_mul<std::int64_t>(moe->n_expert, expert_bytes_[l]));
  for (const ExpertWorkerInventory& worker : workers_) {
    worker_connections_.push_back(worker.connection ? worker.connection(jobs())
                                                    : ConnectionBytes{});
    const bool gpu = worker.kind != DeviceKind::cpu;
    const std::int64_t own = expert_worker_overhead(
        model_, gpu ? gpu_expert_bytes_ : expert_bytes_,
        {.max_rows = jobs().max_rows, .threads = worker.threads, .gpu = gpu});
    const std::int64_t besides =
        saturated_sum({kWorkerBytes, worker_connections_.back().there,
                       gpu ? gpu_worker_host_bytes(spec_, jobs().max_rows) : 0});
    // A GPU's budget is of its memory, and what is besides is not in it.
    const std::int64_t overhead = gpu ? own : saturated_add(besides, own);
    worker_room_.push_back(sizes_.expert_workers ? saturated_rest(worker.budget, {overhead}) : 0);
    if (gpu) worker_room_.back() = gpu_room(worker_room_.back());
    if (!worker.here || worker_room_.back() == 0) continue;
    const std::int64_t most = gpu ? besides : std::min(worker.budget, saturated_add(all, overhead));
    kept_for_workers_ = saturated_add(kept_for_workers_, most);
  }
}

// Experts are counted in the bytes that they take on a CPU. Of a GPU's room as many of these as
// there is room for where they grow most.
std::int64_t ShardPlanner::gpu_room(std::int64_t room) const {
  double least = 1.0;
  for (std::size_t l = 0; l < gpu_expert_bytes_.size(); ++l)
    if (const auto bytes = static_cast<double>(gpu_expert_bytes_[l]); bytes > 0)
      least = std::min(least, static_cast<double>(expert_bytes_[l]) / bytes);
  return static_cast<std::int64_t>(least * static_cast<double>(room));
}

// Of any cut: each device of this process may have layers with experts.
ExpertJobs ShardPlanner::jobs() const {
  const auto here = std::count_if(devices_.begin(), devices_.end(),
                                  [](const DeviceInventory& on) { return !on.remote; });
  return expert_jobs(static_cast<int>(here), layout({0, spec_.n_layer()}).max_rows, options_);
}

// One entry for every layer of the shard; those without experts are empty. A worker with layers
// reaches no worker of experts: what leaves its memory it computes itself.
ExpertLoad ShardPlanner::expert_load(const ShardPlan& shard) const {
  const auto layers = layer_loads_.begin();
  ExpertLoad load{.layers = {layers + shard.layout.first_layer, layers + shard.layout.end_layer},
                  .costs = {}};
  if (shard.kind != DeviceKind::cpu)
    for (std::size_t l = 0; l < load.layers.size(); ++l)
      load.layers[l].device_bytes =
          gpu_expert_bytes_[static_cast<std::size_t>(shard.layout.first_layer) + l];
  // A CPU device keeps what it locks within its own budget. Of pages that an expert shares with its
  // neighbours none is spared where these stay away.
  constexpr std::int64_t kSharedPages = std::int64_t{3} * 2 * 4096;  // at both ends of a matrix
  if (options_.lock_experts && !shard.remote && shard.kind == DeviceKind::cpu)
    for (std::size_t l = 0; l < load.layers.size(); ++l)
      load.layers[l].locked_bytes = std::max<std::int64_t>(
          0, expert_file_bytes_[static_cast<std::size_t>(shard.layout.first_layer) + l] -
                 kSharedPages);
  for (std::size_t w = 0; !shard.remote && w < workers_.size(); ++w)
    if (worker_room_[w] > 0) load.costs.push_back(worker_costs(workers_[w], options_.expert_costs));
  if (shard.remote || !options_.expert_workers_required || load.costs.empty())
    load.costs.push_back(options_.expert_costs);
  return load;
}

// What a worker with layers does not keep in memory it computes itself, so that nobody is missing.
ShardPlanner::Homeless ShardPlanner::homeless(const std::vector<ShardPlan>& shards) const {
  Homeless all;
  if (!options_.expert_workers_required) return all;
  for (const ShardPlan& shard : shards)
    for (std::size_t l = 0; !shard.remote && l < shard.layout.experts.size(); ++l) {
      const std::vector<ExpertHome>& homes = shard.layout.experts[l].home;
      const auto n = std::count(homes.begin(), homes.end(), ExpertHome::host());
      all.experts += static_cast<int>(n);
      all.bytes = saturated_add(
          all.bytes, saturated_mul<std::int64_t>(
                         n, expert_bytes_[static_cast<std::size_t>(shard.layout.first_layer) + l]));
    }
  return all;
}

void ShardPlanner::place_experts(ShardPlan& shard, Residents wanted,
                                 std::vector<std::int64_t>& room) const {
  if (!options_.expert_resident && shard.free_bytes() >= 0) return;  // all of them fit
  const ExpertLoad load = expert_load(shard);
  if (options_.expert_resident)
    return set_experts(load, residents_by_percent(load, *options_.expert_resident), room, shard);
  for (const bool stream : {true, false}) {
    if (wanted != Residents::best || (stream && !may_stream(shard))) continue;
    const auto residents = choose_residents(load, shard, stream);
    if (!residents) continue;
    std::vector<std::int64_t> left = room;
    set_experts(load, *residents, left, shard);
    // Places for experts that cross to the device are kept free in vain where none come to.
    if (stream && shard.streamed_bytes == 0) continue;
    room = std::move(left);
    return;
  }
  // If even the floor is too much, does_not_fit() says by how much, of what comes nearest.
  std::vector<int> floors;
  for (const ExpertLayerLoad& layer : load.layers) floors.push_back(layer.floor);
  ShardPlan least = shard;
  std::vector<std::int64_t> left = room;
  set_experts(load, floors, left, least);
  if (least.total_bytes() < shard.total_bytes()) shard = std::move(least);
}

std::optional<std::vector<int>> ShardPlanner::choose_residents(const ExpertLoad& load,
                                                               const ShardPlan& shard,
                                                               bool stream) const {
  const auto free_bytes = [&](std::span<const int> residents) {
    ShardPlan with = shard;
    std::vector<std::int64_t> at_workers = worker_room_;
    set_experts(load, residents, at_workers, with);
    for (LayerExperts& layer : with.layout.experts)
      layer.streamed = stream && !layer.all_resident();
    set_bytes(with);
    return with.free_bytes();
  };
  // Layers that are whole may go as one kernel, which takes memory besides.
  std::int64_t room = free_bytes(std::vector<int>(load.layers.size(), 0));
  for (;;) {
    std::optional<std::vector<int>> residents = residents_within(load, room);
    const std::int64_t lacking = residents ? std::min<std::int64_t>(0, free_bytes(*residents)) : 0;
    if (lacking == 0) return residents;
    room += lacking;
  }
}

void ShardPlanner::set_worker_uses(const ExpertLoad& load, ShardPlan& shard) const {
  shard.worker_uses.clear();
  if (shard.experts_worker == 0) return;
  shard.worker_uses.resize(workers_.size());
  double pairs = 0.0;
  for (const ExpertLayerLoad& layer : load.layers)
    for (const double chance : layer.chance) pairs += chance;
  for (std::size_t w = 0; w < workers_.size(); ++w)
    for (std::size_t l = 0; l < load.layers.size(); ++l) {
      const HomeUse use = use_of(load.layers[l], shard.layout.experts[l].home,
                                 ExpertHome::worker(static_cast<int>(w)));
      shard.worker_uses[w].share += use.pairs / pairs;
      shard.worker_uses[w].calls += use.any;
    }
}

void ShardPlanner::set_experts(const ExpertLoad& load, std::span<const int> residents,
                               std::vector<std::int64_t>& room, ShardPlan& shard) const {
  std::vector<ExpertWorker> workers;
  if (!shard.remote)
    for (const ExpertWorkerInventory& worker : workers_)
      workers.push_back({worker.budget, worker_costs(worker, options_.expert_costs).bytes_per_s});
  shard.layout.experts.clear();
  shard.experts = shard.experts_host = shard.experts_worker = 0;
  shard.mapped_bytes = 0;
  const std::vector<int> spare = spare_places(load, options_.expert_spare);
  for (std::size_t l = 0; l < load.layers.size(); ++l) {
    LayerExperts& experts = shard.layout.experts.emplace_back();
    if (load.layers[l].chance.empty()) continue;
    experts.home = homes_of(load.layers[l], residents[l], workers, room);
    shard.experts += experts.resident();
    for (const ExpertHome home : experts.home) {
      shard.experts_worker += home.is_worker() ? 1 : 0;
      shard.experts_host += home.is_host() ? 1 : 0;
    }
    const auto at_host = std::count(experts.home.begin(), experts.home.end(), ExpertHome::host());
    if (!options_.lock_experts || shard.remote)
      shard.mapped_bytes +=
          at_host * expert_file_bytes_[static_cast<std::size_t>(shard.layout.first_layer) + l];
    const int away = static_cast<int>(experts.home.size()) - experts.resident();
    experts.spare = std::min(spare[l], away);
  }
  if (shard.experts_host + shard.experts_worker == 0) shard.layout.experts.clear();
  shard.cold_share = cold_share(load, residents);
  set_worker_uses(load, shard);
  set_bytes(shard);
  if (may_stream(shard)) stream_experts(shard);
}

}  // namespace tessera
