// AwayExperts: a model whose experts are partly at one worker process, for benchmarks of that
// worker.
//
//   TESSERA_ASSIGN(auto away, AwayExperts::open({.program = "tessera", .model = "m.gguf",
//                                                .context = 4376}));
//   away->feed(512, true);                // the next rows; their tokens do not matter
//   away->metrics.worker.calls.value();
//
// One device of one thread runs the layers, one worker of one thread has the experts away. One
// sequence; not thread-safe.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/pipeline.h"
#include "worker/remote_experts.h"

namespace tessera::bench {

class AwayExperts {
 public:
  struct Setup {
    std::string program;
    std::string model;
    double resident = 50.0;  // percent
    int context = 0;         // tokens that feed() may be given in all
    int chunk = 512;
    int workers = 1;  // 0: the host computes what is away
    ExpertOptions options;
    worker::TransportChoice transport = worker::TransportChoice::automatic;
  };

  static Result<std::unique_ptr<AwayExperts>> open(const Setup& setup) {
    std::unique_ptr<AwayExperts> away(new AwayExperts);
    TESSERA_ASSIGN(Model opened, Model::open(setup.model));
    const Model& model = away->model_.emplace(std::move(opened));
    Inventory inventory = probe_inventory(1);
    if (setup.workers > 0)
      inventory.expert_workers.push_back({.name = "worker:0", .budget = std::int64_t{1} << 40});
    TESSERA_ASSIGN(const Plan plan, make_plan(model, inventory,
                                              {.context = setup.context,
                                               .prefill_chunk = setup.chunk,
                                               .expert_resident = setup.resident}));
    DeviceOptions options;
    options.experts = {.options = setup.options, .metrics = &away->metrics};
    std::optional<Error> failed;
    if (setup.workers > 0)
      options.experts.workers = [&](const ShardLayout& layout) {
        return away->connect(setup, layout, model, failed);
      };
    TESSERA_ASSIGN(auto shards, open_shards(plan, options));
    TESSERA_ASSIGN(away->pipeline_, Pipeline::load(model, plan, std::move(shards), {}));
    if (failed) return *failed;
    away->pool_ = std::make_unique<SequencePool>(sequence_pool_layout(plan));
    away->context_ = setup.context;
    TESSERA_TRY(away->restart());
    return away;
  }
  ~AwayExperts() { pipeline_.reset(); }  // before the connection, whose executor it has

  Status feed(int rows, bool logits) {
    const ModelSpec& spec = pipeline_->spec();
    std::vector<TokenId> tokens;
    for (int i = 0; i < rows; ++i)
      tokens.push_back(static_cast<TokenId>(((position_ + i) * 7919LL + 13) %
                                            std::min(spec.n_token, spec.n_vocab)));
    state_->extend(rows);
    const SequenceRows sequence{.n_rows = rows,
                                .first_position = position_,
                                .slot = state_->slot(),
                                .pages = state_->page_tables()};
    const std::int32_t last = rows - 1;
    TESSERA_TRY(pipeline_->forward({.tokens = tokens,
                                    .sequences = {&sequence, 1},
                                    .logit_rows = {&last, logits ? std::size_t{1} : 0}}));
    position_ += rows;
    state_->trim(position_);
    return {};
  }
  // The next rows are the first ones.
  Status restart() {
    state_.reset();
    position_ = 0;
    TESSERA_ASSIGN(SequenceState state, pool_->admit(context_));
    state_.emplace(std::move(state));
    pipeline_->reset_slot(state_->slot());
    return {};
  }
  bool healthy() const { return connection_->state() == worker::WorkerState::healthy; }

  MetricsRegistry registry;
  ExpertMetrics metrics{registry};

 private:
  AwayExperts() = default;

  std::vector<std::unique_ptr<ExpertExecutor>> connect(const Setup& setup,
                                                       const ShardLayout& layout,
                                                       const Model& model,
                                                       std::optional<Error>& failed) {
    worker::WorkerSite site{
        .name = "worker:0", .role = worker::Role::experts, .transport = setup.transport};
    site.spawn = worker::SpawnOptions{.binary = setup.program,
                                      .arguments = {"worker", setup.model, "--config", "/dev/null",
                                                    "--threads", "1", "--log-level", "warn"}};
    std::vector<std::unique_ptr<ExpertExecutor>> executors;
    auto made = worker::ExpertConnection::create(
        site,
        {.experts = layout.experts, .max_rows = layout.max_rows, .payload = setup.options.payload},
        model, registry);
    if (!made) {
      failed = made.error();
      return executors;
    }
    connection_ = *std::move(made);
    if (const Status ready = connection_->wait_ready(); !ready) failed = ready.error();
    executors.push_back(connection_->executor());
    return executors;
  }

  std::optional<Model> model_;
  std::unique_ptr<worker::ExpertConnection> connection_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<SequencePool> pool_;
  std::optional<SequenceState> state_;
  int context_ = 0;
  int position_ = 0;
};

}  // namespace tessera::bench
