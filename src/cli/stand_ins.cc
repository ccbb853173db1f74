#include "cli/stand_ins.h"

#include <utility>

#include "plan/footprint.h"

namespace tessera::cli {

StandIns::StandIns(const Model& model, const Plan& plan, const DeviceOptions& options,
                   MetricsRegistry& metrics)
    : model_(model), plan_(plan), options_(options), metrics_(metrics) {
  // Its experts are the host's.
  options_.experts.options.required = false;
  options_.experts.workers = nullptr;
  options_.experts.hurry_workers = nullptr;
  options_.experts.end_workers = nullptr;
  for (const ShardPlan& shard : plan.shards) {
    if (shard.remote || shard.kind != DeviceKind::cpu) continue;
    if (host_ == nullptr || shard.free_bytes() > host_->free_bytes()) host_ = &shard;
  }
  if (host_ != nullptr) room_ = std::make_shared<HostRoom>(host_->free_bytes());
}

std::unique_ptr<Shard> StandIns::behind(std::unique_ptr<Shard> worker, const ShardPlan& shard,
                                        bool spawned) const {
  if (shard.kind != DeviceKind::cpu || (!spawned && host_ == nullptr)) return worker;
  const int threads = spawned ? shard.threads : host_->threads;
  const std::int64_t bytes = cpu_shard_bytes(model_, shard.layout, threads);
  if (!spawned && host_->free_bytes() < bytes) return worker;
  Plan here;
  here.expert_costs = plan_.expert_costs;
  ShardPlan& own = here.shards.emplace_back(shard);
  own.device = spawned ? "cpu" : host_->device;
  own.remote = false;
  own.threads = threads;
  if (!spawned) own.cpus = host_->cpus;
  const auto open = [here, options = options_]() -> Result<std::unique_ptr<Shard>> {
    TESSERA_ASSIGN(auto shards, open_shards(here, options));
    return std::move(shards.front());
  };
  return std::make_unique<StandInShard>(
      std::move(worker),
      StandInParts{
          .worker = shard.device,
          .device = own.device,
          .layers = fmt::format("{}-{}", shard.layout.first_layer, shard.layout.end_layer - 1),
          .bytes = bytes,
          .room = spawned ? std::make_shared<HostRoom>(bytes) : room_,
          .open = open},
      metrics_);
}

}  // namespace tessera::cli
