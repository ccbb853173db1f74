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
  DeviceOptions device;
  Placement placement = {};  // `threads` is for all of its devices
};

class ModelRunner {
 public:
  ModelRunner(const std::string& path, const RunnerOptions& options) {
    Result<Model> model = Model::open(path);
    EXPECT_TRUE(model) << model.error().message;
    if (!model) return;
    const Result<Inventory> inventory = probe_inventory(options.placement, options.threads);
    EXPECT_TRUE(inventory) << inventory.error().message;
    if (!inventory) return;
    Result<Plan> plan =
        make_plan(*model, *inventory,
                  {.context = std::min(options.context, model->spec().context_length),
                   .parallel = options.parallel,
                   .prefill_chunk = options.prefill_chunk,
                   .logit_rows = options.logit_rows,
                   .kv_type = options.kv_type,
                   .layer_weights = options.placement.layer_weights});
    EXPECT_TRUE(plan) << plan.error().message;
    if (!plan) return;
    auto devices = open_devices(*plan, options.device);
    EXPECT_TRUE(devices) << devices.error().message;
    if (!devices) return;
    auto pipeline = Pipeline::load(*model, *plan, *std::move(devices), {});
    EXPECT_TRUE(pipeline) << pipeline.error().message;
    if (!pipeline) return;
    pipeline_ = *std::move(pipeline);
    plan_ = *std::move(plan);
    pool_ = std::make_unique<SequencePool>(sequence_pool_layout(plan_));
  }

  bool ready() const { return pipeline_ != nullptr; }
  const ModelSpec& spec() const { return pipeline_->spec(); }
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
    const Status status =
        pipeline_->forward({.tokens = tokens, .sequences = rows, .logit_rows = logit_rows});
    EXPECT_TRUE(status);
    const std::span<const float> logits = pipeline_->logits();
    for (Feed& feed : feeds) feed.sequence->state.trim(feed.sequence->position);
    return {logits.begin(), logits.end()};
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
  Plan plan_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<SequencePool> pool_;
};

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
