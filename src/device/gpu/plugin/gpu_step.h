// GpuStep: one step of a shard as kernel launches. It knows the model, the weights, the state and
// the scratch, and turns each block into calls of kernels/kernels.h; GpuDevice decides when.
//
//   StepShape shape{.rows = 1, .sequences = 1, .max_sequence_rows = 1, .max_context = 1024};
//   const BlockCall calls[] = {{Block::begin}, {Block::embed}, {Block::mixer, 0}, {Block::ffn, 0}};
//   TESSERA_TRY(step.run(calls, shape));
//
// A launch depends on the shape, on pointers and on what lies in device memory (Scratch's inputs),
// never on the host's view of the batch, so that a captured run may be replayed for any batch of
// the same shape.
#pragma once

#include <compare>
#include <memory>
#include <span>
#include <vector>

#include "device/gpu/kernels/choose.h"
#include "device/gpu/kernels/dense_run.h"
#include "device/gpu/kernels/handover.h"
#include "device/gpu/plugin/expert_posts.h"
#include "device/gpu/plugin/expert_stream.h"
#include "device/gpu/plugin/gpu_weights.h"
#include "device/gpu/plugin/side_queue.h"

namespace tessera::gpu {

// How the head's tokens are chosen: by the host, or here.
enum class Choosing : std::uint8_t { host, largest, drawn };

struct StepShape {
  int rows = 0;
  int sequences = 0;
  int max_sequence_rows = 0;
  int logit_rows = 0;
  int max_context = 0;  // a bound of every position + 1
  Choosing choosing = Choosing::host;
  bool handed = false;  // rows come from another GPU, or go to one, without a copy (handover.h)
  auto operator<=>(const StepShape&) const = default;
};

// ffn: with every expert here. ffn_branches: with those that are, after route; ffn_finish: adds up
// what branches and stream() have computed; add_branch: adds the branch's rows to the residual.
// post, answered: in place of route and ffn_finish where the host is asked for what is not here;
// foresee: what the layer will probably ask for, by the rows as they are. bring: of that, what is
// read over the link begins to come; post_brought: a post of such a layer, whose branches wait for
// it. take_rows, hand_rows: the residual from the GPU before and to the next one (handover.h).
enum class Block : std::uint8_t {
  begin,
  embed,
  mixer,
  route,
  ffn,
  ffn_branches,
  ffn_finish,
  add_branch,
  post,
  post_brought,
  answered,
  foresee,
  bring,
  head,
  take_rows,
  hand_rows
};

// Of a step of one row: its sequence and position, and the step's number, 0 where there is none.
struct StepRow {
  std::int32_t slot = -1, position = 0, step = 0;
};

struct BlockCall {
  Block block{};
  int layer = 0;
  auto operator<=>(const BlockCall&) const = default;
};

// Everything in device memory that a step reads and writes. Owned by the device.
struct StepMemory {
  const ModelSpec& spec;
  const ShardLayout& shard;
  const GpuWeights& weights;
  const StateLayout& state;
  const Scratch& scratch;
  const ExpertPosts& posts;
  SideQueue& side;
  std::vector<std::byte*> pools;  // by KV group
  float* slots = nullptr;
  std::int64_t most_ns = 0;     // that rows of another GPU are waited for
  ChosenRow* chosen = nullptr;  // [2][max_logit_rows], pinned: a step's tokens need no copy
};

class GpuStep {
 public:
  GpuStep(StepMemory memory, const Launch& launch);

  // Whether layers of one row may go as runs (kernels/run.h, or those of kernels/dense_run.h);
  // once, before the first step: from then on they do. `queue`: the steps'.
  bool may_run() const;
  Status prepare_runs(const LoadQueue& queue);
  // That may be part of one.
  int run_layers() const;
  int dense_layers() const;
  // Whether every layer of these calls is part of a run.
  bool all_in_runs(std::span<const BlockCall> calls, const StepShape& shape) const;
  const Launch& launch() const { return launch_; }

  // Ahead of these calls, one by one or as a graph; not where they are captured. `row`: where the
  // step has one, and all_in_runs() holds of its calls, which are no graph.
  Status before(std::span<const BlockCall> calls, const StepShape& shape, const StepRow& row);
  // Ahead of anything else that reads or writes a sequence's recurrent state; it enqueues something
  // where a log is open.
  bool log_open() const { return log_open_; }
  Status settle_states();
  // `number`: the step's, where the calls are enqueued as they are; 0 where they are captured.
  Status run(std::span<const BlockCall> calls, const StepShape& shape, std::int32_t number) const;
  // Rows go to this place on another GPU (Block::hand_rows); once, before the first of them.
  void hand_rows_to(std::byte* place) { next_handed_ = place; }
  // Whether something of the layer may be brought here.
  bool brings(int layer) const {
    return memory_.weights.layer(layer).brought != nullptr && memory_.posts.reads_any();
  }
  // Of a step that is dropped: what it has begun beside its kernels ends before what comes next.
  Status join_side() const { return memory_.side.join_all(launch_.stream); }
  // After ffn_branches of the layer: the pairs of experts that lie in a group of the stream.
  Status stream(int layer, const StepShape& shape, const StreamedGroup& group) const;
  // The logits as the head left them, where choosing has changed them.
  Status restore_logits(const StepShape& shape) const;

 private:
  // routed: the layer's router goes, or went, with its mixer.
  Status run(const BlockCall& call, const StepShape& shape, bool routed) const;
  // Whether the calls begin with a mixer and its FFN, whose router goes with it.
  bool routes(std::span<const BlockCall> calls, const StepShape& shape) const;
  // Whether the calls begin with an FFN and the mixer behind it, whose projections go with it.
  bool leads(std::span<const BlockCall> calls, const StepShape& shape) const;
  // Of the mixer; ffn_routed: of the FFN before it.
  Status run_leading(int layer, const StepShape& shape, bool ffn_routed, bool routed) const;
  // Whether the calls begin with a mixer whose projections, that no FFN has made, go like those.
  bool begins(std::span<const BlockCall> calls, const StepShape& shape) const;
  Status run_first(int layer, const StepShape& shape, bool routed) const;
  // A mixer whose quantised projections are made.
  Status run_led(int layer, RunLayer calls) const;
  // A run that takes or hands its rows needs the step's number.
  struct Handover {
    bool takes = false, hands = false;
    std::int32_t number = 0;
  };
  Status run_as_one(int first, int layers, const StepShape& shape, const Handover& handover) const;
  // Of how many runs' numbers a step's FFNs of several rows may use.
  int together_runs(const StepShape& shape) const;
  Status clear_passed();
  Status prepare_dense_runs(const LoadQueue& queue);
  // Of a dense model: how many layers the calls begin with that go as runs.
  int dense_length(std::span<const BlockCall> calls, const StepShape& shape) const;
  // `logs`: the step goes to the log (dense_run.h), not to the states.
  Status run_dense_layers(int first, int layers, bool logs) const;
  // Decides whether the calls' steps go to the log, which is settled where they do not.
  Status follow_log(std::span<const BlockCall> calls, const StepRow& row);
  int dense_place(int layer) const {
    return dense_places_[static_cast<std::size_t>(layer - memory_.shard.first_layer)];
  }
  // How many layers the calls begin with that go as one kernel.
  int run_length(std::span<const BlockCall> calls, const StepShape& shape) const;
  int run_place(int layer) const {
    return run_places_[static_cast<std::size_t>(layer - memory_.shard.first_layer)];
  }
  // What a layer's mixer calls; of the FFN nothing, but where its router goes with the mixer.
  RunLayer mixer_calls(int layer, const StepShape& shape, bool routed = false) const;
  RunLayer attention_calls(int layer, const AttentionSpec& spec, const StepShape& shape) const;
  RunLayer delta_calls(int layer, const GatedDeltaSpec& spec, const StepShape& shape) const;
  int begin(const StepShape& shape) const;
  int embed_rows(const StepShape& shape) const;
  int mixer(int layer, const StepShape& shape, bool routed) const;
  int mix(int layer, const RunLayer& calls) const;
  ProjectArgs output_args(int layer, const Input& input, const Matrix& matrix,
                          const StepShape& shape) const;
  int output(int layer, const ProjectArgs& args) const;
  int add_branch(const StepShape& shape) const;
  int foresee(int layer, const StepShape& shape) const;
  Status bring(int layer, const StepShape& shape) const;
  Status branches(int layer, const StepShape& shape) const;
  FfnArgs ffn(int layer, const StepShape& shape, bool routed = false) const;
  AwayArgs away(int layer) const {
    return memory_.posts.args(layer - memory_.shard.first_layer, memory_.scratch.step);
  }
  // Alternates over the layers that may lack experts.
  int side_place(int layer) const { return memory_.shard.lacking_before(layer) % 2; }
  std::int32_t* foreseen(int layer) const { return memory_.scratch.foreseen[side_place(layer)]; }
  int head(const StepShape& shape) const;
  HandoverArgs handover(const StepShape& shape, std::byte* place) const;
  ChooseArgs choices(const StepShape& shape) const;

  const LayerSpec& layer_spec(int layer) const {
    return memory_.spec.layers[static_cast<std::size_t>(layer)];
  }
  Input normed(const float* weight) const;
  StepRows step_rows(const StepShape& shape) const;

  StepMemory memory_;
  Launch launch_;
  std::vector<int> run_places_;    // by layer of the shard: in scratch.run_plans; -1: none
  std::vector<int> dense_places_;  // the same for runs of dense_run.h
  StepRow last_row_;               // of the last step by dense runs
  bool log_open_ = false;          // that sequence's states in memory may lack steps of the log
  std::uint32_t runs_ = 0;         // since what they pass was cleared
  std::byte* next_handed_ = nullptr;
};

}  // namespace tessera::gpu
