// ModelRunner: a model file on a pipeline, driven row by row for tests that cross rooms.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "pipeline/pipeline.h"
#include "plan/plan.h"
#include "state/sequence_pool.h"

namespace tessera::testing {

struct RunnerOptions {
  int threads = 2;
  int parallel = 4;
  int prefill_chunk = 512;
  int logit_rows = 512;
  int context = 1024;
  std::optional<KvType> kv_type;
  bool f32_weights = false;
  DeviceOptions device;
  Placement placement = {};  // `threads` is for all of its devices
  // Workers that the placement names, and how their shards are made.
  std::vector<WorkerInventory> workers = {};
  std::function<RemoteShards(const Model& model, const Plan& plan)> remote = {};
  std::optional<double> expert_resident = {};  // percent
  int expert_spare = 0;
  bool may_fail = false;   // loading, which failure() then says
  int expert_workers = 0;  // that take the experts away; DeviceOptions::experts says who they are
  std::optional<std::int64_t> budget = {};  // of each device
  PlanOptions::Table table = PlanOptions::Table::automatic;
  int turns = 1;
};

// The plan that a runner of these options loads.
inline Result<Plan> runner_plan(const Model& model, const RunnerOptions& options) {
  TESSERA_ASSIGN(Inventory inventory,
                 probe_inventory(options.placement, options.threads, options.workers));
  for (int i = 0; i < options.expert_workers; ++i)
    inventory.expert_workers.push_back(
        {.name = fmt::format("worker:{}", i), .budget = std::int64_t{1} << 30});
  if (options.budget)
    for (DeviceInventory& device : inventory.devices) device.budget = options.budget;
  return make_plan(model, inventory,
                   {.context = std::min(options.context, model.spec().context_length),
                    .parallel = options.parallel,
                    .prefill_chunk = options.prefill_chunk,
                    .logit_rows = options.logit_rows,
                    .kv_type = options.kv_type,
                    .f32_weights = options.f32_weights,
                    .layer_weights = options.placement.layer_weights,
                    .turns = options.turns,
                    .expert_resident = options.expert_resident,
                    .expert_spare = {.places = options.expert_spare},
                    .expert_stream = options.device.experts.options.stream != ExpertStream::off,
                    .table = options.table});
}

class ModelRunner {
 public:
  ModelRunner(const std::string& path, const RunnerOptions& options) {
    Result<Model> opened = Model::open(path);
    EXPECT_TRUE(opened) << opened.error().message;
    if (!opened) return;
    model_ = std::make_unique<Model>(*std::move(opened));
    Result<Plan> plan = runner_plan(*model_, options);
    EXPECT_TRUE(plan) << plan.error().message;
    if (!plan) return;
    auto shards = open_shards(*plan, options.device,
                              options.remote ? options.remote(*model_, *plan) : RemoteShards());
    EXPECT_TRUE(shards) << shards.error().message;
    if (!shards) return;
    auto pipeline = Pipeline::load(*model_, *plan, *std::move(shards), {});
    if (!pipeline) {
      EXPECT_TRUE(options.may_fail) << pipeline.error().message;
      failure_ = pipeline.error();
      return;
    }
    pipeline_ = *std::move(pipeline);
    plan_ = *std::move(plan);
    pool_ = std::make_unique<SequencePool>(sequence_pool_layout(plan_));
  }

  bool ready() const { return pipeline_ != nullptr; }
  const std::optional<Error>& failure() const { return failure_; }
  const ModelSpec& spec() const { return pipeline_->spec(); }
  const Model& model() const { return *model_; }
  const Plan& plan() const { return plan_; }
  Pipeline& pipeline() { return *pipeline_; }
  const SequencePool& pool() const { return *pool_; }

  // One sequence that grows by feed().
  struct Sequence {
    SequenceState state;
    int position = 0;
  };
  Sequence start(int capacity) {
    Result<SequenceState> state = pool_->admit(capacity);
    EXPECT_TRUE(state) << state.error().message;
    Sequence sequence{.state = *std::move(state)};
    pipeline_->reset_slot(sequence.state.slot());
    return sequence;
  }

  struct Feed {
    Sequence* sequence;
    std::vector<TokenId> tokens;
  };
  // One step over rows of several sequences; returns the logits of all rows.
  std::vector<float> step(std::span<Feed> feeds) {
    const Result<std::vector<float>> logits = try_step(feeds);
    EXPECT_TRUE(logits) << logits.error().message;
    return logits ? *logits : std::vector<float>();
  }
  Result<std::vector<float>> try_step(std::span<Feed> feeds) {
    TESSERA_TRY(forward(feeds, {}));
    const std::span<const float> logits = pipeline_->logits();
    return std::vector<float>(logits.begin(), logits.end());
  }
  // One step over rows of several sequences, with a choice for each.
  std::vector<ChosenToken> choose(std::span<Feed> feeds, const TokenChoices& choices) {
    const Status done = forward(feeds, choices);
    EXPECT_TRUE(done) << done.error().message;
    EXPECT_TRUE(pipeline_->logits().empty());
    const std::span<const ChosenToken> chosen = pipeline_->chosen();
    return {chosen.begin(), chosen.end()};
  }
  Status forward(std::span<Feed> feeds, const TokenChoices& choices) {
    std::vector<TokenId> tokens;
    std::vector<SequenceRows> rows;
    std::vector<std::int32_t> logit_rows;
    for (Feed& feed : feeds) {
      const int n = static_cast<int>(feed.tokens.size());
      feed.sequence->state.extend(n);
      rows.push_back({.first_row = static_cast<int>(tokens.size()),
                      .n_rows = n,
                      .first_position = feed.sequence->position,
                      .slot = feed.sequence->state.slot(),
                      .pages = feed.sequence->state.page_tables()});
      tokens.insert(tokens.end(), feed.tokens.begin(), feed.tokens.end());
      feed.sequence->position += n;
    }
    for (std::size_t i = 0; i < tokens.size(); ++i)
      logit_rows.push_back(static_cast<std::int32_t>(i));
    TESSERA_TRY(pipeline_->forward(
        {.tokens = tokens, .sequences = rows, .logit_rows = logit_rows, .choices = choices}));
    for (Feed& feed : feeds) feed.sequence->state.trim(feed.sequence->position);
    return {};
  }

  // Teacher-forced logits of one prompt alone, in chunks.
  std::vector<float> logits(std::span<const TokenId> ids, int chunk) {
    Sequence sequence = start(static_cast<int>(ids.size()));
    std::vector<float> all;
    for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(chunk)) {
      const auto n = std::min(static_cast<std::size_t>(chunk), ids.size() - at);
      Feed feed{&sequence,
                {ids.begin() + static_cast<std::ptrdiff_t>(at),
                 ids.begin() + static_cast<std::ptrdiff_t>(at + n)}};
      const std::vector<float> part = step({&feed, 1});
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  // Logits of the last token only: the steps before ask for none.
  std::vector<float> last_logits(std::span<const TokenId> ids, int chunk) {
    Sequence sequence = start(static_cast<int>(ids.size()));
    std::vector<TokenId> tokens;
    for (std::size_t at = 0; at < ids.size();) {
      const auto n = std::min(static_cast<std::size_t>(chunk), ids.size() - at);
      tokens.assign(ids.begin() + static_cast<std::ptrdiff_t>(at),
                    ids.begin() + static_cast<std::ptrdiff_t>(at + n));
      sequence.state.extend(static_cast<int>(n));
      SequenceRows rows{.n_rows = static_cast<int>(n),
                        .first_position = static_cast<int>(at),
                        .slot = sequence.state.slot(),
                        .pages = sequence.state.page_tables()};
      at += n;
      std::vector<std::int32_t> logit_rows;
      if (at == ids.size()) logit_rows.push_back(static_cast<std::int32_t>(n) - 1);
      EXPECT_TRUE(pipeline_->forward(
          {.tokens = tokens, .sequences = {&rows, 1}, .logit_rows = logit_rows}));
      std::fill(tokens.begin(), tokens.end(), 0);
      rows = {};
      sequence.state.trim(static_cast<int>(at));
    }
    const std::span<const float> logits = pipeline_->logits();
    return {logits.begin(), logits.end()};
  }

 private:
  std::unique_ptr<Model> model_;  // experts away from the device are read from it
  Plan plan_;
  std::optional<Error> failure_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<SequencePool> pool_;
};

// A sequence's state spans shards: its first 128 tokens go to one sequence, the rest to another
// that got the state of the first, which is then reset. The rest must come out as in one run.
inline void expect_state_copied(ModelRunner& runner, std::span<const std::int32_t> ids) {
  const std::vector<float> whole = runner.logits(ids, 512);
  ModelRunner::Sequence a = runner.start(300), b = runner.start(300);
  ModelRunner::Feed feed{&a, {ids.begin(), ids.begin() + 128}};
  runner.step({&feed, 1});
  b.state.extend(128);
  b.position = 128;
  const auto from = a.state.page_tables(), to = b.state.page_tables();
  for (std::size_t group = 0; group < from.size(); ++group)
    for (std::size_t page = 0; page < from[group].size(); ++page)
      runner.pipeline().copy_page(static_cast<int>(group),
                                  {.from = from[group][page], .to = to[group][page]});
  runner.pipeline().copy_slot({.from = a.state.slot(), .to = b.state.slot()});
  runner.pipeline().reset_slot(a.state.slot());
  feed = {&b, {ids.begin() + 128, ids.end()}};
  const std::vector<float> rest = runner.step({&feed, 1});
  EXPECT_TRUE(
      std::equal(rest.begin(), rest.end(), whole.end() - static_cast<std::ptrdiff_t>(rest.size())));
}

// Log-softmax of one row, in double.
inline std::vector<double> log_softmax(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (float x : logits) sum += std::exp(x - top);
  std::vector<double> out;
  for (float x : logits) out.push_back(x - top - std::log(sum));
  return out;
}

}  // namespace tessera::testing
