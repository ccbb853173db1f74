#include "cli/expert_workers.h"

#include <algorithm>

#include "base/log.h"
#include "cli/worker_sites.h"
#include "plan/expert_workers.h"

namespace tessera::cli {
namespace {

worker::ExpertConnectionOptions wanted(std::size_t id, const std::vector<LayerExperts>& homes,
                                       const Plan& plan, const ExpertOptions& options) {
  return {.id = static_cast<int>(id),
          .experts = homes,
          .max_rows = plan.expert_workers[id].job_rows,
          .payload = options.payload,
          .required = options.required,
          .credits = plan.expert_workers[id].jobs};
}

}  // namespace

Status check_expert_use(const std::vector<ExpertSite>& sites, const Model& model,
                        const Plan& plan) {
  if (sites.empty()) return {};
  const std::string& name = sites.front().site.name;
  const std::vector<LayerSpec>& layers = model.spec().layers;
  const auto routes = [](const LayerSpec& layer) { return layer.moe.has_value(); };
  for (const ShardPlan& shard : plan.shards)
    if (!shard.remote && std::any_of(layers.begin() + shard.layout.first_layer,
                                     layers.begin() + shard.layout.end_layer, routes))
      return {};
  return Error::make(ErrorCode::invalid,
                     "{} is to compute experts of layers in this process, and all layers with "
                     "experts are in workers, which compute their own; put some of them here "
                     "(--target-devices) or leave it out",
                     name);
}

Result<ExpertWorkers> ExpertWorkers::start(const Config& config,
                                           const std::vector<ExpertSite>& sites, const Model& model,
                                           const Plan& plan, const ExpertOptions& options,
                                           MetricsRegistry& metrics) {
  ExpertWorkers workers;
  const std::vector<LayerExperts> homes = homes_of_all_layers(plan.shards, plan.n_layer);
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const ExpertSite& site = sites[i];
    auto& connection = workers.connections_->emplace_back();
    if (plan.expert_workers[i].experts == 0 && plan.experts_host() > 0)
      continue;  // the plan's warnings say so
    if (plan.expert_workers[i].experts == 0) {
      log_info("{} has no experts to compute: all have their place with their layers",
               site.site.name);
      continue;
    }
    // Its --budget is for experts and jobs alone.
    const ExpertWorkerPlan& planned = plan.expert_workers[i];
    const WorkerStart start{
        .model = model.file().path(),
        .threads = site.threads,
        .budget = planned.budget_bytes - (planned.on_gpu() ? 0 : planned.host_bytes)};
    TESSERA_ASSIGN(connection, worker::ExpertConnection::create(
                                   started_site(config, site.site, start),
                                   wanted(i, homes, plan, options), model, metrics));
  }
  if (options.required)
    for (const auto& connection : *workers.connections_)
      if (connection) TESSERA_TRY(connection->wait_ready());
  return workers;
}

void ExpertWorkers::await(bool patient) const {
  for (const auto& connection : *connections_) {
    if (!connection) continue;
    if (patient) {
      if (const Status ready = connection->wait_ready(); !ready)
        log_warn("{}; the host computes its experts until it comes", ready.error().message);
    } else if (!connection->is_ready()) {
      log_info("{} is not ready: the host computes its experts until it is", connection->name());
    }
  }
}

void ExpertWorkers::Connections::begin_stop() const {
  for (const auto& connection : *this)
    if (connection) connection->begin_stop();
}

void ExpertWorkers::Connections::hurry() const {
  for (const auto& connection : *this)
    if (connection) connection->hurry();
}

void ExpertWorkers::give_to(LocalExperts& experts) const {
  experts.workers = [connections = connections_](const ShardLayout&) {
    std::vector<std::unique_ptr<ExpertExecutor>> executors;
    for (const auto& connection : *connections)
      executors.push_back(connection ? connection->executor() : nullptr);
    return executors;
  };
  experts.hurry_workers = [connections = connections_] { connections->hurry(); };
  experts.end_workers = [connections = connections_] { connections->begin_stop(); };
}

}  // namespace tessera::cli
