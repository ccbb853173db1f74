// Pipelines whose shards lie in this process or in spawned workers, for tests.
//
//   ModelRunner runner(path, on_topology(path, "LWL", {.threads = 3}, workers));
//
// A letter a shard: L a team of this process, G the next of LayerWorkers::gpus, W a worker of its
// own, which is spawned, or the one that listens.
#pragma once

#include <string>

#include "base/metrics.h"
#include "plan/layer_cuts.h"
#include "tests/model_runner.h"
#include "tests/worker/listening_process.h"
#include "worker/remote_shard.h"

namespace tessera::testing {

// That the workers' hosts are reckoned to have.
inline constexpr PlacedCost kHostCost{.call_us = 10.0, .bytes_per_us = 1000.0};

struct LayerWorkers {
  MetricsRegistry metrics;
  worker::TransportChoice transport = worker::TransportChoice::automatic;
  // No machine stands still for long enough to make a good worker dead.
  std::chrono::milliseconds job_limit = std::chrono::minutes(30);
  worker::LifecycleOptions lifecycle{.dead_after = std::chrono::minutes(30)};
  std::string binary = TESSERA_PROGRAM;
  std::vector<std::string> words = {"worker"};  // before the model
  std::vector<std::string> addresses;           // where workers listen; none: they are spawned
  WorkerInventory inventory{.threads = 1};      // of each, but its name
  std::vector<DeviceName> gpus{};               // of this process
  std::string token{};
  std::unique_ptr<ListeningProcess> listening{};
  ExpertMetrics experts{metrics};  // gets what workers count of theirs

  // Starts one that listens, in the place of those that are spawned.
  void listen(const std::string& model) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {model, "--config", "/dev/null", "--threads", "1", "--log-level", "off"});
    listening = std::make_unique<ListeningProcess>(binary, std::move(all));
    addresses = {listening->address()};
    token = kToken;
  }
};

// Whether the model has as many parts as layers that share KV leave possible.
inline bool can_be_cut(const std::string& model, std::size_t parts) {
  const Result<Model> opened = Model::open(model);
  EXPECT_TRUE(opened);
  const std::vector<bool> legal = legal_cuts(opened->spec());
  return std::count(legal.begin() + 1, legal.end(), true) >= static_cast<std::ptrdiff_t>(parts);
}

inline worker::WorkerSite site_of(const LayerWorkers& workers, const std::string& model,
                                  const ShardPlan& shard, const DeviceOptions& device) {
  worker::WorkerSite site{.name = shard.device, .transport = workers.transport};
  site.job_limit = workers.job_limit;
  site.lifecycle = workers.lifecycle;
  if (!workers.addresses.empty()) {
    const std::size_t number = std::stoul(shard.device.substr(shard.device.find(':') + 1));
    site.address = *worker::Address::parse(workers.addresses.at(number));
    site.token = workers.token;
    return site;
  }
  std::vector<std::string> words = workers.words;
  for (const std::string& word :
       {model, std::string("--config"), std::string("/dev/null"), std::string("--threads"),
        std::to_string(shard.threads), std::string("--cpu-isa"),
        device.cpu_isa.empty() ? std::string("auto") : device.cpu_isa, std::string("--log-level"),
        std::string("warn")})
    words.push_back(word);
  site.spawn = worker::SpawnOptions{
      .binary = workers.binary, .arguments = std::move(words), .log_prefix = shard.device};
  return site;
}

// `options` for this topology. `workers` must outlive the runner.
inline RunnerOptions on_topology(const std::string& path, const std::string& letters,
                                 RunnerOptions options, LayerWorkers& workers) {
  options.threads = static_cast<int>(letters.size());
  options.placement.devices.clear();
  int teams = 0;
  std::size_t gpus = 0;
  for (const char letter : letters) {
    DeviceName name;
    if (letter == 'W') {
      name.worker = std::to_string(options.workers.size());
      options.workers.push_back(workers.inventory);
      options.workers.back().name = name;
    } else if (letter == 'G') {
      name = workers.gpus.at(gpus++);
    } else {
      name.team = teams++;
    }
    options.placement.devices.push_back(name);
  }
  options.remote = [path, &workers, device = options.device](const Model& model, const Plan& plan) {
    return [&model, &workers, path, device,
            context = plan.context](const ShardPlan& shard) -> Result<std::unique_ptr<Shard>> {
      TESSERA_ASSIGN(auto remote,
                     worker::RemoteShard::create(site_of(workers, path, shard, device),
                                                 {.layout = shard.layout,
                                                  .context = context,
                                                  .chunked_delta = device.chunked_delta,
                                                  .experts = &workers.experts,
                                                  .expert_cost = kHostCost,
                                                  .counts = device.experts.counts},
                                                 model, workers.metrics));
      return std::unique_ptr<Shard>(std::move(remote));
    };
  };
  return options;
}

}  // namespace tessera::testing
