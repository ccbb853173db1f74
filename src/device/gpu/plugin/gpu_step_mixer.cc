// GpuStep: what a layer's mixer calls, attention or the delta rule between two projections.
#include "device/gpu/plugin/gpu_step.h"

namespace tessera::gpu {
namespace {

// Appends to the outputs of a product.
void add_output(ProjectArgs& args, const Matrix& w, float* out, std::int64_t stride) {
  args.outputs[static_cast<std::size_t>(args.n_outputs++)] = {.w = w, .out = out, .stride = stride};
}

}  // namespace

RunLayer GpuStep::mixer_calls(int layer, const StepShape& shape, bool routed) const {
  const LayerSpec& spec = layer_spec(layer);
  const AttentionSpec* a = spec.attention();
  RunLayer calls = a != nullptr ? attention_calls(layer, *a, shape)
                                : delta_calls(layer, *spec.gated_delta(), shape);
  if (routed) calls.ffn = ffn(layer, shape, true);
  return calls;
}

int GpuStep::mixer(int layer, const StepShape& shape, bool routed) const {
  const RunLayer calls = mixer_calls(layer, shape, routed);
  const int error = project(launch_, calls.in);
  return error != 0 ? error : mix(layer, calls);
}

// Behind its projections.
int GpuStep::mix(int layer, const RunLayer& calls) const {
  const int error = layer_spec(layer).attention() != nullptr ? attention(launch_, calls.attention)
                                                             : gated_delta(launch_, calls.delta);
  if (error != 0) return error;
  return calls.ffn.routed ? project_and_route(launch_, calls.out, calls.ffn)
                          : output(layer, calls.out);
}

// The mixer's output projection, added to the residual rows.
ProjectArgs GpuStep::output_args(int layer, const Input& input, const Matrix& matrix,
                                 const StepShape& shape) const {
  const bool post_norm = layer_spec(layer).mixer_post_norm;
  const Scratch& s = memory_.scratch;
  ProjectArgs args{.input = input, .rows = shape.rows};
  add_output(args, matrix, post_norm ? s.branch : s.hidden, memory_.spec.n_embd);
  args.outputs[0].add = !post_norm;
  return args;
}

int GpuStep::output(int layer, const ProjectArgs& args) const {
  const Scratch& s = memory_.scratch;
  const int error = project(launch_, args);
  if (error != 0 || !layer_spec(layer).mixer_post_norm) return error;
  return add_normed(launch_,
                    {.hidden = s.hidden,
                     .branch = s.branch,
                     .weight = memory_.weights.layer(layer).vector(TensorRole::mixer_post_norm),
                     .eps = memory_.spec.norm_eps,
                     .rows = args.rows,
                     .cols = memory_.spec.n_embd});
}

RunLayer GpuStep::attention_calls(int layer, const AttentionSpec& a, const StepShape& shape) const {
  const LayerWeights& w = memory_.weights.layer(layer);
  const Scratch& s = memory_.scratch;
  const std::int64_t q_head =
      a.gate == OutputGate::sigmoid_in_query ? 2 * a.head_dim_k : a.head_dim_k;
  const std::int64_t q = a.n_head * q_head, out = std::int64_t{a.n_head} * a.head_dim_v;
  const std::int64_t k = std::int64_t{a.n_kv_head} * a.head_dim_k;
  const std::int64_t v = std::int64_t{a.n_kv_head} * a.head_dim_v;
  const bool own_kv = a.kv_source < 0;
  const std::int64_t gate = a.gate == OutputGate::softplus_per_head ? a.n_head : out;

  RunLayer l;
  l.in = {.input = normed(w.vector(TensorRole::mixer_norm)), .rows = shape.rows};
  add_output(l.in, w.matrix(TensorRole::attn_q), s.wide, q);
  if (own_kv) add_output(l.in, w.matrix(TensorRole::attn_k), s.side, k);
  if (own_kv && !a.value_is_key) add_output(l.in, w.matrix(TensorRole::attn_v), s.side_v, v);
  const bool gate_matrix = w.matrix(TensorRole::attn_gate).data != nullptr;
  if (gate_matrix) add_output(l.in, w.matrix(TensorRole::attn_gate), s.gate, gate);

  const LayerKv& kv = memory_.state.kv[static_cast<std::size_t>(layer)];
  const auto group = static_cast<std::size_t>(kv.group);
  const int rope = s.rope_of_layer[static_cast<std::size_t>(layer)];
  l.attention = {.step = step_rows(shape),
                 .kv = kv.geometry,
                 .n_head = a.n_head,
                 .q = s.wide,
                 .q_stride = q,
                 .q_head_stride = q_head,
                 .k = own_kv ? s.side : nullptr,
                 .v = own_kv && !a.value_is_key ? s.side_v : nullptr,
                 .k_stride = k,
                 .v_stride = v,
                 .q_norm = a.qk_norm ? w.vector(TensorRole::attn_q_norm) : nullptr,
                 .k_norm = a.qk_norm ? w.vector(TensorRole::attn_k_norm) : nullptr,
                 .v_norm = a.v_norm,
                 .eps = memory_.spec.norm_eps,
                 .n_rot = rope < 0 ? 0 : a.rope.n_rot,
                 .cos = rope < 0 ? nullptr : s.cos[static_cast<std::size_t>(rope)],
                 .sin = rope < 0 ? nullptr : s.sin[static_cast<std::size_t>(rope)],
                 .scale = a.scale,
                 .softcap = a.softcap,
                 .window = a.window,
                 .gate = a.gate,
                 .gate_logits = gate_matrix ? s.gate : nullptr,
                 .gate_stride = gate,
                 .pool = memory_.pools[group],
                 .page_stride = memory_.state.page_bytes[group],
                 .layer_offset = kv.offset,
                 .page_table = s.tables[group],
                 .table_stride = s.table_stride,
                 .max_context = shape.max_context,
                 .out = s.wide_out,
                 .out_stride = out};
  const Input mixed{.kind = InputKind::plain,
                    .x = s.wide_out,
                    .stride = out,
                    .cols = static_cast<int>(out),
                    .rounded = attention_leaves_rounded(l.attention)};
  l.out = output_args(layer, mixed, w.matrix(TensorRole::attn_output), shape);
  return l;
}

RunLayer GpuStep::delta_calls(int layer, const GatedDeltaSpec& g, const StepShape& shape) const {
  const LayerWeights& w = memory_.weights.layer(layer);
  const Scratch& s = memory_.scratch;
  float* alpha = s.heads;
  float* beta = s.heads + std::int64_t{memory_.shard.max_rows} * g.n_value_head;

  RunLayer l;
  l.in = {.input = normed(w.vector(TensorRole::mixer_norm)), .rows = shape.rows};
  add_output(l.in, w.matrix(TensorRole::gdn_qkv), s.wide, g.conv_channels());
  add_output(l.in, w.matrix(TensorRole::gdn_gate), s.side, g.value_width());
  add_output(l.in, w.matrix(TensorRole::gdn_alpha), alpha, g.n_value_head);
  add_output(l.in, w.matrix(TensorRole::gdn_beta), beta, g.n_value_head);
  l.delta = {.step = step_rows(shape),
             .spec = g,
             .qkv = s.wide,
             .alpha = alpha,
             .beta_logits = beta,
             .taps = w.vector(TensorRole::gdn_conv),
             .dt_bias = w.vector(TensorRole::gdn_dt_bias),
             .a = w.vector(TensorRole::gdn_a),
             .state = memory_.slots + memory_.state.slot_offset[static_cast<std::size_t>(layer)],
             .slot_stride = memory_.state.slot_floats,
             .out = s.side_v,
             .gate = s.side,
             .norm = w.vector(TensorRole::gdn_norm),
             .eps = memory_.spec.norm_eps};
  const Input mixed{.kind = InputKind::gated_rms,
                    .x = s.side_v,
                    .stride = g.value_width(),
                    .cols = g.value_width(),
                    .weight = l.delta.norm,
                    .eps = l.delta.eps,
                    .gate = s.side,
                    .gate_stride = g.value_width(),
                    .gate_open = opens_gate(g, l.delta.step),
                    .head_dim = g.dim_v,
                    .rounded = leaves_rounded(launch_, g, l.delta.step)};
  l.out = output_args(layer, mixed, w.matrix(TensorRole::gdn_out), shape);
  return l;
}

}  // namespace tessera::gpu
