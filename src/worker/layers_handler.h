// LayersHandler: a worker's end of role layers. It holds one shard of the model and runs
// FORWARD_LAYERS jobs on it, in order.
//
//   LayersHandler handler(model, {.device = {.device = "cpu", .threads = 4}, .budget = bytes});
//   serve(channel, offer, handler, stats);
//
// What a client asks for is checked against the model and the budget before it is loaded. A client
// that asks for what the one before had gets it without loading again: a sequence's state begins
// with reset_slot, and page tables begin empty with every client.
//
// Trust: the client knows the token or is the same user; its jobs are checked all the same, so that
// none can reach outside the shard's memory. It can read what an earlier client left in KV pages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/model.h"
#include "pipeline/shard.h"
#include "worker/jobs.h"
#include "worker/page_tables.h"
#include "worker/serve.h"
#include "worker/weight_source.h"

namespace tessera::worker {

struct LayersHandlerOptions {
  ShardPlan device;                // its kind, number, name, threads and cores
  std::int64_t budget = 0;         // bytes for the shard, of the device's memory
  DeviceOptions opening;           // chunked_delta is the client's
  WeightSource* source = nullptr;  // of the weights; null: the model's file
};

class LayersHandler final : public JobHandler {
 public:
  // `model` must outlive it.
  LayersHandler(const Model& model, const LayersHandlerOptions& options);

  void release() { shard_.reset(); }  // its memory; prepare() loads again

  Result<Prepared> prepare(const Hello& hello, const HelloAck& ack) override;
  Result<JobOutput> run(const FrameHeader& header, std::span<const std::byte> body,
                        const WireLimits& limits, const Near& near) override;
  ExpertCounts expert_counts() const override;
  Status routed(std::uint16_t layer, std::vector<std::byte>& body) override;
  // A GPU that failed stays so while the process lives.
  bool lost() const override { return lost_; }

 private:
  Status compute(const Near& near);
  Status take_job(const FrameHeader& header, const ForwardBody& job);
  JobOutput output(const FrameHeader& header, const WireLimits& limits);

  const Model& model_;
  LayersHandlerOptions options_;
  std::vector<int> windows_;  // of the KV groups

  MetricsRegistry registry_;
  ExpertMetrics expert_metrics_{registry_};
  // Of the client, where it asked for them. The shard's, whose weights may outlast it.
  std::unique_ptr<RoutingCounts> routing_;
  std::unique_ptr<LocalShard> shard_;  // of layout_ and delta_form_
  ShardLayout layout_;
  std::uint8_t delta_form_ = 0;
  bool lost_ = false;

  // The client's.
  ExpertCounts counted_before_;
  std::uint32_t n_expert_ = 0;
  ForwardLimits limits_;
  PageTables pages_;
  ForwardBody job_;
  Piece piece_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<ChosenToken> chosen_;  // room for the most logit rows
  std::vector<std::byte> told_;      // of them
};

// What a client asks for, held against the model before anything is made for it, and the bytes that
// it takes of the device's memory, on a CPU with serving_bytes, held against the budget. Pure.
Result<ShardLayout> hello_layout(const ModelSpec& spec, const Hello& hello, const HelloAck& ack);
Result<std::int64_t> check_budget(const Model& model, const ShardLayout& layout, const Hello& hello,
                                  const HelloAck& ack, const ShardPlan& device,
                                  std::int64_t budget);

// What serving such a client takes of the worker's memory besides the shard, and so of its place in
// the plan: page tables, the largest jobs under all credits and the one that is computed, and what
// counts the routing. Nothing where it is no number.
std::optional<std::int64_t> serving_bytes(const Hello& hello, const HelloAck& ack);

// What of a shard travels in HELLO, and back.
struct LayersWish {
  int context = 0;  // positions of a sequence, at most
  bool chunked_delta = false;
  bool count_routing = false;  // of a model with experts
};
Hello layers_hello(const Model& model, const ShardLayout& layout, const LayersWish& wish);
// The same for the files of all models of this shape: without the digest.
Hello layers_terms(const ModelSpec& spec, const ShardLayout& layout, const LayersWish& wish);
ModelDims model_dims(const ModelSpec& spec);

}  // namespace tessera::worker
