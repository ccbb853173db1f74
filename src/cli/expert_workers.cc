#include "cli/expert_workers.h"

#include <algorithm>

#include "base/log.h"

namespace tessera::cli {
namespace {

// The homes of all layers' experts, from the shards of this process.
std::vector<LayerExperts> homes_of_all_layers(const Plan& plan) {
  std::vector<LayerExperts> layers(static_cast<std::size_t>(plan.n_layer));
  for (const ShardPlan& shard : plan.shards)
    if (!shard.remote)
      std::copy(shard.layout.experts.begin(), shard.layout.experts.end(),
                layers.begin() + shard.layout.first_layer);
  return layers;
}

int most_rows(const Plan& plan) {
  int rows = 0;
  for (const ShardPlan& shard : plan.shards)
    if (!shard.remote) rows = std::max(rows, shard.layout.max_rows);
  return rows;
}

bool has_any(const std::vector<LayerExperts>& layers, int id) {
  return std::any_of(layers.begin(), layers.end(), [id](const LayerExperts& layer) {
    return std::find(layer.home.begin(), layer.home.end(), ExpertHome::worker(id)) !=
           layer.home.end();
  });
}

}  // namespace

Result<ExpertWorkers> ExpertWorkers::start(const Config& config,
                                           const std::vector<ExpertSite>& sites, const Model& model,
                                           const Plan& plan, const ExpertOptions& options,
                                           MetricsRegistry& metrics) {
  ExpertWorkers workers;
  const std::vector<LayerExperts> homes = homes_of_all_layers(plan);
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const ExpertSite& site = sites[i];
    auto& connection = workers.connections_->emplace_back();
    if (!has_any(homes, static_cast<int>(i))) {
      log_info("{} has no experts to compute: all have their place with their layers",
               site.site.name);
      continue;
    }
    TESSERA_ASSIGN(connection, worker::ExpertConnection::create(
                                   started_site(config, site.site, model.file().path(),
                                                site.threads, site.inventory.budget),
                                   {.id = static_cast<int>(i),
                                    .experts = homes,
                                    .max_rows = std::min(most_rows(plan), options.batch_capacity),
                                    .payload = options.payload},
                                   model, metrics));
  }
  for (std::size_t i = 0; i < sites.size(); ++i) {
    if ((*workers.connections_)[i] == nullptr) continue;
    Status ready = (*workers.connections_)[i]->wait_ready();
    if (ready) continue;
    if (sites[i].site.spawn || options.required) return std::move(ready).error();
    log_warn("{}; the host computes its experts until it comes", ready.error().message);
  }
  return workers;
}

std::function<std::vector<std::unique_ptr<ExpertExecutor>>(const ShardLayout&)>
ExpertWorkers::executors() const {
  return [connections = connections_](const ShardLayout&) {
    std::vector<std::unique_ptr<ExpertExecutor>> executors;
    for (const auto& connection : *connections)
      executors.push_back(connection ? connection->executor() : nullptr);
    return executors;
  };
}

}  // namespace tessera::cli
