// SplitModel: a model whose layers are split over this process and a worker, for benchmarks.
//
//   TESSERA_ASSIGN(auto split, SplitModel::open(model, {.link = Link::shared, .context = 4096}));
//   split->pipeline().forward(...);
//
// One thread a shard. The worker is a thread of this process behind a real connection. One
// sequence at a time; not thread-safe.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "pipeline/pipeline.h"
#include "plan/placement.h"
#include "worker/connect.h"
#include "worker/layers_handler.h"
#include "worker/remote_shard.h"
#include "worker/serve.h"

namespace tessera::bench {

// Where the last half of the layers is: nowhere else, in a second shard here, or at a worker.
enum class Link { none, here, shared, unix_socket, tcp };

inline const std::string kToken = "a token for the loopback only";

// A worker's end in a thread of this process.
class LayerWorker {
 public:
  LayerWorker(const Model& model, const std::string& address)
      : handler_(model,
                 {.device = {.device = "cpu", .threads = 1}, .budget = std::int64_t{1} << 40}),
        offer_{.roles = worker::role_bit(worker::Role::layers),
               .model = model_digest(model.file()),
               .dims = worker::model_dims(model.spec()),
               .max_rows = worker::kMaxWireRows,
               .max_page_changes = worker::kMaxPageChanges} {
    auto listener = worker::Listener::open(*worker::Address::parse(address));
    CHECK(listener.ok(), "{}", listener.error().message);
    address_ = listener->address();
    thread_ = std::thread([this, listener = *std::move(listener)]() mutable {
      auto channel = listener.accept({.token = kToken}, worker::after(std::chrono::minutes(1)));
      CHECK(channel.ok() && *channel != nullptr, "no client came");
      worker::Stats stats;
      (void)worker::serve(**channel, offer_, handler_, stats);
    });
  }
  ~LayerWorker() { thread_.join(); }
  const worker::Address& address() const { return address_; }

 private:
  worker::LayersHandler handler_;
  worker::WorkerOffer offer_;
  worker::Address address_;
  std::thread thread_;
};

class SplitModel {
 public:
  struct Setup {
    Link link = Link::none;
    int context = 0;
    int chunk = 256;
    int credits = kPiecesPerBoundary;  // of a worker
  };

  static Result<std::unique_ptr<SplitModel>> open(const Model& model, const Setup& setup) {
    std::unique_ptr<SplitModel> split(new SplitModel);
    TESSERA_ASSIGN(const Plan plan, split->plan(model, setup));
    const RemoteShards remote = [&](const ShardPlan& shard) {
      return split->connect(model, setup, plan, shard);
    };
    TESSERA_ASSIGN(auto shards, open_shards(plan, {}, remote));
    TESSERA_ASSIGN(split->pipeline_, Pipeline::load(model, plan, std::move(shards), {}));
    split->pool_.emplace(sequence_pool_layout(plan));
    return split;
  }

  Pipeline& pipeline() { return *pipeline_; }
  SequencePool& pool() { return *pool_; }

 private:
  SplitModel() = default;

  static Result<Plan> plan(const Model& model, const Setup& setup) {
    const bool away = setup.link >= Link::shared, split = setup.link != Link::none;
    Placement placement;
    placement.devices = {DeviceName{.team = 0}};
    std::vector<WorkerInventory> workers;
    if (away) workers.push_back({.name = {.worker = "0"}, .threads = 1});
    if (split) placement.devices.push_back(away ? workers[0].name : DeviceName{.team = 1});
    TESSERA_ASSIGN(const Inventory inventory,
                   probe_inventory(placement, split && !away ? 2 : 1, workers));
    return make_plan(model, inventory,
                     {.context = setup.context,
                      .prefill_chunk = setup.chunk,
                      .layer_weights = std::vector<double>(split ? 2 : 0, 1)});
  }

  Result<std::unique_ptr<Shard>> connect(const Model& model, const Setup& setup, const Plan& plan,
                                         const ShardPlan& shard) {
    socket_ = std::filesystem::temp_directory_path() /
              fmt::format("split_model.{}.{}", getpid(), static_cast<int>(setup.link));
    worker_.emplace(model, setup.link == Link::tcp ? "tcp:127.0.0.1:0" : "unix:" + socket_);
    worker::WorkerSite site{.name = shard.device, .address = worker_->address(), .token = kToken};
    site.transport = setup.link == Link::shared ? worker::TransportChoice::shared
                                                : worker::TransportChoice::stream;
    TESSERA_ASSIGN(
        auto made,
        worker::RemoteShard::create(
            site, {.layout = shard.layout, .context = plan.context, .credits = setup.credits},
            model, metrics_));
    return std::unique_ptr<Shard>(std::move(made));
  }

  std::string socket_;
  MetricsRegistry metrics_;
  std::optional<LayerWorker> worker_;
  std::unique_ptr<Pipeline> pipeline_;
  std::optional<SequencePool> pool_;
};

}  // namespace tessera::bench
