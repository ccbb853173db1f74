// Who computes the layers of workers that do not come back: this process, where it has room for
// them.
//
//   const StandIns stand_ins(model, plan, device_options, metrics);
//   shard = stand_ins.behind(std::move(remote), plan.shards[1], spawned);
//
// By the plan's own figures: a worker that this process started leaves the memory that it had, and
// its threads; the layers of one elsewhere take the threads of a CPU device here, and what they
// need with these of the memory that the plan leaves it. Layers that a GPU holds stay there.
#pragma once

#include <memory>

#include "pipeline/shard.h"
#include "pipeline/stand_in_shard.h"
#include "plan/plan.h"

namespace tessera::cli {

// The model and the plan must outlive it, and nothing that it made needs the plan or it; all need
// the metrics.
class StandIns {
 public:
  StandIns(const Model& model, const Plan& plan, const DeviceOptions& options,
           MetricsRegistry& metrics);
  // `worker` with somebody behind it, or itself where nobody has room.
  std::unique_ptr<Shard> behind(std::unique_ptr<Shard> worker, const ShardPlan& shard,
                                bool spawned) const;

 private:
  const ShardPlan* host_ = nullptr;  // the CPU device of this process with the most room
  const Model& model_;
  const Plan& plan_;
  DeviceOptions options_;
  MetricsRegistry& metrics_;
  std::shared_ptr<HostRoom> room_;  // of it
};

}  // namespace tessera::cli
