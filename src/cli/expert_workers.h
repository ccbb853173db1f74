// The workers that compute experts for this process, from the options to executors.
//
//   TESSERA_ASSIGN(auto workers,
//                  ExpertWorkers::start(config, sites, model, plan, options, metrics));
//   workers.give_to(device_options.experts);
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/metrics.h"
#include "cli/find_workers.h"
#include "pipeline/shard.h"
#include "worker/remote_experts.h"

namespace tessera::cli {

// That the plan has layers here whose experts they can compute: a worker with layers reaches none
// of them.
Status check_expert_use(const std::vector<ExpertSite>& sites, const Model& model, const Plan& plan);

class ExpertWorkers {
 public:
  ExpertWorkers() = default;

  // Those to which the plan gives experts; all load at the same time, and go on doing so. Only
  // where they are required is it waited for them, and one that does not come up an error.
  static Result<ExpertWorkers> start(const Config& config, const std::vector<ExpertSite>& sites,
                                     const Model& model, const Plan& plan,
                                     const ExpertOptions& options, MetricsRegistry& metrics);

  // Says of which the host computes the experts for now: those that failed to start (they are
  // started again and again), and where nobody is `patient` also those that have not loaded yet.
  void await(bool patient) const;

  // Sets `workers`, `hurry_workers` and `end_workers`, which keep the connections alive.
  void give_to(LocalExperts& experts) const;

 private:
  // The workers of all end at the same time.
  struct Connections : std::vector<std::unique_ptr<worker::ExpertConnection>> {
    ~Connections() { begin_stop(); }
    void begin_stop() const;
    void hurry() const;
  };
  // By the number of the worker; null for one without experts.
  std::shared_ptr<Connections> connections_ = std::make_shared<Connections>();
};

}  // namespace tessera::cli
