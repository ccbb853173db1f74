#include "device/gpu/plugin/gpu_step.h"

namespace tessera::gpu {
namespace {

const char* block_name(Block block) {
  switch (block) {
    case Block::begin:
      return "rotary tables";
    case Block::embed:
      return "embedding";
    case Block::mixer:
      return "mixer";
    case Block::route:
    case Block::post:
    case Block::post_brought:
    case Block::foresee:
      return "router";
    case Block::bring:
      return "experts";
    case Block::ffn:
    case Block::ffn_branches:
    case Block::ffn_finish:
    case Block::add_branch:
    case Block::answered:
      return "FFN";
    case Block::head:
      return "head";
    case Block::take_rows:
    case Block::hand_rows:
      return "rows of another GPU";
  }
  return "step";
}

}  // namespace

GpuStep::GpuStep(StepMemory memory, const Launch& launch)
    : memory_(std::move(memory)),
      launch_(launch),
      run_places_(static_cast<std::size_t>(memory_.shard.end_layer - memory_.shard.first_layer),
                  -1),
      dense_places_(run_places_) {}

Status GpuStep::run(const BlockCall& call, const StepShape& shape, bool routed) const {
  int error = 0;
  switch (call.block) {
    case Block::begin:
      error = begin(shape);
      break;
    case Block::embed:
      error = embed_rows(shape);
      break;
    case Block::mixer:
      error = mixer(call.layer, shape, routed);
      break;
    case Block::route:
      error = ffn_route(launch_, ffn(call.layer, shape));
      break;
    case Block::ffn:
      error = ffn_all(launch_, ffn(call.layer, shape, routed));
      break;
    case Block::ffn_branches:
      return branches(call.layer, shape);
    case Block::ffn_finish:
      error = ffn_finish(launch_, ffn(call.layer, shape));
      break;
    case Block::add_branch:
      error = add_branch(shape);
      break;
    case Block::post:
    case Block::post_brought: {
      AwayArgs away = this->away(call.layer);
      if (call.block == Block::post_brought) away.foreseen = foreseen(call.layer);
      error = ffn_post(launch_, ffn(call.layer, shape), away);
      break;
    }
    case Block::answered:
      error = ffn_finish_answered(launch_, ffn(call.layer, shape), away(call.layer));
      break;
    case Block::foresee:
      error = foresee(call.layer, shape);
      break;
    case Block::bring:
      return bring(call.layer, shape);
    case Block::head:
      error = head(shape);
      break;
    case Block::take_rows:
      error = take_rows(launch_, handover(shape, memory_.scratch.handed));
      break;
    case Block::hand_rows:
      error = hand_rows(launch_, handover(shape, next_handed_));
      break;
  }
  if (error == 0) return {};
  return status_of(error,
                   fmt::format("{} of layer {}", block_name(call.block), call.layer).c_str());
}

HandoverArgs GpuStep::handover(const StepShape& shape, std::byte* place) const {
  return {.hidden = memory_.scratch.hidden,
          .n = std::int64_t{shape.rows} * memory_.spec.n_embd,
          .place = place,
          .step = memory_.scratch.step,
          .most_ns = memory_.most_ns};
}

Input GpuStep::normed(const float* weight) const {
  return {.kind = InputKind::rms_norm,
          .x = memory_.scratch.hidden,
          .stride = memory_.spec.n_embd,
          .cols = memory_.spec.n_embd,
          .weight = weight,
          .eps = memory_.spec.norm_eps};
}

StepRows GpuStep::step_rows(const StepShape& shape) const {
  return {.rows = shape.rows,
          .n_sequences = shape.sequences,
          .max_sequence_rows = shape.max_sequence_rows,
          .position = memory_.scratch.positions,
          .sequence = memory_.scratch.sequence,
          .sequences = memory_.scratch.sequences};
}

int GpuStep::begin(const StepShape& shape) const {
  const Scratch& s = memory_.scratch;
  for (std::size_t i = 0; i < s.ropes.size(); ++i) {
    const int error = rope_tables(launch_, {.inv_freq = s.inv_freq[i],
                                            .half = static_cast<int>(s.ropes[i]->inv_freq.size()),
                                            .magnitude = s.ropes[i]->magnitude,
                                            .position = s.positions,
                                            .rows = shape.rows,
                                            .cos = s.cos[i],
                                            .sin = s.sin[i]});
    if (error != 0) return error;
  }
  return 0;
}

int GpuStep::embed_rows(const StepShape& shape) const {
  return embed(launch_, {.table = memory_.weights.global().matrix(TensorRole::token_embd),
                         .rest = memory_.weights.table_rest(),
                         .tokens = memory_.scratch.tokens,
                         .chosen = memory_.scratch.chosen,
                         .rows = shape.rows,
                         .scale = memory_.spec.embedding_scale,
                         .out = memory_.scratch.hidden});
}

FfnArgs GpuStep::ffn(int layer, const StepShape& shape, bool routed) const {
  const LayerSpec& spec = layer_spec(layer);
  const LayerWeights& w = memory_.weights.layer(layer);
  const Scratch& s = memory_.scratch;
  FfnArgs args{.rows = shape.rows,
               .n_embd = memory_.spec.n_embd,
               .eps = memory_.spec.norm_eps,
               .hidden = s.hidden,
               .norm = w.vector(TensorRole::ffn_norm)};
  if (spec.dense)
    args.dense = {
        .gate = w.matrix(TensorRole::dense_gate),
        .up = w.matrix(TensorRole::dense_up),
        .down = w.matrix(TensorRole::dense_down),
        .activation = spec.dense->activation,
        .scalar_gate = spec.dense->scalar_gate ? w.vector(TensorRole::dense_scalar_gate) : nullptr,
        .post_norm = spec.dense->post_norm ? w.vector(TensorRole::dense_post_norm) : nullptr};
  if (spec.moe)
    args.moe = {.n_expert = spec.moe->n_expert,
                .n_used = spec.moe->n_used,
                .n_ff = spec.moe->n_ff,
                .activation = spec.moe->activation,
                .router = spec.moe->router,
                .router_weight = w.matrix(TensorRole::router),
                .router_scale = w.vector(TensorRole::router_scale),
                .router_bias = w.vector(TensorRole::router_bias),
                .expert_scale = w.vector(TensorRole::expert_scale),
                .norm = spec.moe->own_norm ? w.vector(TensorRole::moe_norm) : nullptr,
                .post_norm = spec.moe->post_norm ? w.vector(TensorRole::moe_post_norm) : nullptr,
                .shape = w.experts,
                .table = w.expert_table,
                .linked = w.linked,
                .brought = w.brought,
                .ids = s.ids,
                .weights = s.weights,
                .logits = s.router_logits};
  if (spec.ffn_post_norm) args.post_norm = w.vector(TensorRole::ffn_post_norm);
  if (spec.layer_scale) args.layer_scale = w.vector(TensorRole::layer_scale);
  // Not beside experts on their way, as no run is.
  args.passed = run_place(layer) >= 0 && !memory_.side.busy() ? s.run_passed : nullptr;
  args.routed = routed;
  args.dense_out = s.dense_out;
  args.pair_out = s.pair_out;
  return args;
}

// The layer before still needs its choice.
int GpuStep::foresee(int layer, const StepShape& shape) const {
  FfnArgs args = ffn(layer, shape);
  args.moe.ids = foreseen(layer);
  args.moe.weights = nullptr;
  args.dense = {};
  const AwayArgs away =
      memory_.posts.foresee_args(layer - memory_.shard.first_layer, memory_.scratch.step);
  return ffn_post(launch_, args, away);
}

// Beside what follows: its queue goes on behind the foreseen choice.
Status GpuStep::bring(int layer, const StepShape& shape) const {
  const FfnArgs args = ffn(layer, shape);
  return memory_.side.fork(launch_.stream, side_place(layer), [&](GpuStream queue) {
    Launch launch = launch_;
    launch.stream = queue;
    launch.chained = false;
    return bring_experts(launch, {.ids = foreseen(layer),
                                  .rows = args.rows,
                                  .n_used = args.moe.n_used,
                                  .n_expert = args.moe.n_expert,
                                  .linked = args.moe.linked,
                                  .bytes = args.moe.shape.bytes,
                                  .to = memory_.weights.layer(layer).brought});
  });
}

// Of experts that are brought the dense branch needs nothing. Kernels that follow a join are not
// chained: they would begin before what was brought is sure to be seen.
Status GpuStep::branches(int layer, const StepShape& shape) const {
  const int place = side_place(layer);
  const FfnArgs all = ffn(layer, shape);
  if (!memory_.side.forked(place)) return status_of(ffn_branches(launch_, all), "FFN");
  FfnArgs dense = all, experts = all;
  dense.moe = {};
  experts.dense = {};
  TESSERA_TRY(status_of(ffn_branches(launch_, dense), "FFN"));
  TESSERA_TRY(memory_.side.join(launch_.stream, place));
  Launch launch = launch_;
  launch.chained = false;
  return status_of(ffn_branches(launch, experts), "experts");
}

// Not chained: kernels may read a table before they wait for the one that writes it.
Status GpuStep::stream(int layer, const StepShape& shape, const StreamedGroup& group) const {
  Launch launch = launch_;
  launch.chained = false;
  FfnArgs args = ffn(layer, shape);
  args.moe.table = group.table.table;
  int error = set_expert_table(launch, group.table);
  if (error == 0) error = ffn_more_experts(launch, args, group.experts, group.pairs);
  return status_of(error, "streamed experts");
}

int GpuStep::add_branch(const StepShape& shape) const {
  return add_normed(launch_, {.hidden = memory_.scratch.hidden,
                              .branch = memory_.scratch.branch,
                              .weight = nullptr,
                              .eps = memory_.spec.norm_eps,
                              .rows = shape.rows,
                              .cols = memory_.spec.n_embd});
}

int GpuStep::head(const StepShape& shape) const {
  if (shape.logit_rows == 0) return 0;
  const LayerWeights& w = memory_.weights.global();
  const Scratch& s = memory_.scratch;
  const ModelSpec& spec = memory_.spec;
  ProjectArgs args{.input = normed(w.vector(TensorRole::output_norm)), .rows = shape.logit_rows};
  args.input.row_ids = s.logit_rows;
  args.n_outputs = 1;
  args.outputs[0] = {.w = w.matrix(spec.tied_head ? TensorRole::token_embd : TensorRole::output),
                     .out = s.logits,
                     .stride = spec.n_vocab};
  if (const int error = project(launch_, args); error != 0) return error;
  if (spec.logit_softcap > 0.0f) {
    const int error = softcap(launch_, s.logits, std::int64_t{shape.logit_rows} * spec.n_vocab,
                              spec.logit_softcap);
    if (error != 0) return error;
  }
  return shape.choosing == Choosing::host ? 0 : choose(launch_, choices(shape));
}

ChooseArgs GpuStep::choices(const StepShape& shape) const {
  const Scratch& s = memory_.scratch;
  const ModelSpec& spec = memory_.spec;
  return {.logits = s.logits,
          .rows = shape.logit_rows,
          .n_vocab = spec.n_vocab,
          .n_token = spec.n_token,
          .suppressed = s.banned,
          .n_suppressed = static_cast<int>(spec.suppressed_tokens.size()),
          .sampled = shape.choosing == Choosing::drawn,
          .choices = s.choices,
          .changes = s.changes,
          .before = s.before,
          .out = memory_.chosen,
          .odd_rows = memory_.shard.max_logit_rows,
          .step = s.step,
          .ids = s.chosen};
}

Status GpuStep::restore_logits(const StepShape& shape) const {
  const int error = gpu::restore_logits(launch_, choices(shape));
  return error == 0 ? Status{} : status_of(error, "logits");
}

}  // namespace tessera::gpu
