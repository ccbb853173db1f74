#include <algorithm>
#include <array>
#include <cmath>

#include "device/cpu/step_context.h"

namespace tessera::cpu {
namespace {

constexpr float kL2Eps = 1e-6f;  // fixed by the architecture
constexpr int kConvPiece = 256;  // channels of one convolution task

struct Gates {
  float* alpha;
  float* beta_logits;
  float* g;
  float* beta;
};

Gates gates_of(const StepContext& context, const GatedDeltaSpec& d) {
  const std::int64_t floats = std::int64_t{context.max_rows} * d.n_value_head;
  float* heads = context.scratch.heads;
  return {heads, heads + floats, heads + 2 * floats, heads + 3 * floats};
}

void project_delta(const StepContext& context, TeamMember& member, const GatedDeltaSpec& d,
                   const LayerWeights& weights) {
  const Scratch& s = context.scratch;
  const Gates gates = gates_of(context, d);
  const Activations x = activations(s.normed, context.max_rows, context.n_embd(), s.normed_records);
  const auto product = [&](TensorRole role, float* out, std::int64_t width) {
    return Product{.w = &weights.matrix(role),
                   .x = x,
                   .n_rows = context.rows(),
                   .out = out,
                   .out_stride = width};
  };
  const std::array<Product, 4> products = {
      product(TensorRole::gdn_qkv, s.wide, d.conv_channels()),
      product(TensorRole::gdn_gate, s.side, d.value_width()),
      product(TensorRole::gdn_alpha, gates.alpha, d.n_value_head),
      product(TensorRole::gdn_beta, gates.beta_logits, d.n_value_head)};
  multiply(context, member, products);
}

void convolve(const StepContext& context, TeamMember& member, const GatedDeltaSpec& d,
              const LayerWeights& weights, int layer) {
  const Scratch& s = context.scratch;
  const int channels = d.conv_channels();
  const int pieces = (channels + kConvPiece - 1) / kConvPiece;
  const int sequences = static_cast<int>(context.batch.sequences.size());
  member.for_each(sequences * pieces, 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const SequenceRows& sequence = context.batch.sequences[static_cast<std::size_t>(i / pieces)];
      const int first = i % pieces * kConvPiece;
      const std::int64_t row = std::int64_t{sequence.first_row} * channels;
      context.delta.conv_silu({.width = d.conv_width,
                               .rows = sequence.n_rows,
                               .channels = channels,
                               .first_channel = first,
                               .end_channel = std::min(channels, first + kConvPiece),
                               .taps = weights.vector(TensorRole::gdn_conv),
                               .x = s.wide + row,
                               .x_stride = channels,
                               .history = context.state.recurrent(sequence, layer),
                               .out = s.wide_out + row,
                               .out_stride = channels});
    }
  });
}

// l2 norms of the row's query and key heads, decay and write strength of its value heads.
void prepare_row(const StepContext& context, const GatedDeltaSpec& d, const LayerWeights& weights,
                 int row) {
  float* qk = context.scratch.wide_out + std::int64_t{row} * d.conv_channels();
  for (int h = 0; h < 2 * d.n_key_head; ++h) {
    float* head = qk + std::int64_t{h} * d.dim_k;
    context.ops.l2_normalize(head, kL2Eps, d.dim_k, head);
  }
  const Gates gates = gates_of(context, d);
  const std::int64_t at = std::int64_t{row} * d.n_value_head;
  context.delta.gates(gates.alpha + at, weights.vector(TensorRole::gdn_dt_bias),
                      weights.vector(TensorRole::gdn_a), gates.beta_logits + at, d.n_value_head,
                      gates.g + at, gates.beta + at);
}

void recur(const StepContext& context, TeamMember& member, const GatedDeltaSpec& d, int layer) {
  const Scratch& s = context.scratch;
  const Gates gates = gates_of(context, d);
  const int channels = d.conv_channels();
  const int sequences = static_cast<int>(context.batch.sequences.size());
  const int per_key = d.n_value_head / d.n_key_head;
  member.for_each(sequences * d.n_value_head, 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const SequenceRows& sequence =
          context.batch.sequences[static_cast<std::size_t>(i / d.n_value_head)];
      const int head = i % d.n_value_head;
      const int key_head = d.grouped_values ? head / per_key : head % d.n_key_head;
      const float* row = s.wide_out + std::int64_t{sequence.first_row} * channels;
      const std::int64_t gate_at = std::int64_t{sequence.first_row} * d.n_value_head + head;
      float* state = context.state.recurrent(sequence, layer) +
                     std::int64_t{d.conv_width - 1} * channels +
                     std::int64_t{head} * d.dim_k * d.dim_v;
      const DeltaTask task{.dim_k = d.dim_k,
                           .dim_v = d.dim_v,
                           .rows = sequence.n_rows,
                           .q = row + std::int64_t{key_head} * d.dim_k,
                           .k = row + d.key_width() + std::int64_t{key_head} * d.dim_k,
                           .v = row + 2 * d.key_width() + std::int64_t{head} * d.dim_v,
                           .q_stride = channels,
                           .k_stride = channels,
                           .v_stride = channels,
                           .g = gates.g + gate_at,
                           .beta = gates.beta + gate_at,
                           .gate_stride = d.n_value_head,
                           .q_scale = 1.0f / std::sqrt(static_cast<float>(d.dim_k)),
                           .state = state,
                           .out = s.side_v + std::int64_t{sequence.first_row} * d.value_width() +
                                  std::int64_t{head} * d.dim_v,
                           .out_stride = d.value_width()};
      if (context.chunked_delta && task.rows > 1) {
        context.delta.chunked(task, reinterpret_cast<float*>(context.thread_bytes(member)));
      } else {
        context.delta.recurrent(task);
      }
    }
  });
}

}  // namespace

void delta_block(StepContext& context, int layer) {
  const GatedDeltaSpec& d = *context.layer(layer).gated_delta();
  const LayerWeights& weights = context.weights.layer(layer);
  const Scratch& s = context.scratch;
  const WeightMatrix& w_out = weights.matrix(TensorRole::gdn_out);
  const Activations mixed =
      activations(s.side_v, context.max_rows, d.value_width(), s.mixed_records);
  const Product output{.w = &w_out,
                       .x = mixed,
                       .n_rows = context.rows(),
                       .out = s.branch,
                       .out_stride = context.n_embd()};

  context.team.run([&](TeamMember& member) {
    norm_rows(context, member, weights, TensorRole::mixer_norm);
    project_delta(context, member, d, weights);
    convolve(context, member, d, weights, layer);
    member.for_each(context.rows(), 1, [&](int begin, int end) {
      for (int row = begin; row < end; ++row) prepare_row(context, d, weights, row);
    });
    recur(context, member, d, layer);
    member.for_each(context.rows(), 1, [&](int begin, int end) {
      for (int row = begin; row < end; ++row) {
        for (int h = 0; h < d.n_value_head; ++h) {
          const std::int64_t at = std::int64_t{row} * d.value_width() + std::int64_t{h} * d.dim_v;
          context.ops.gated_rms_norm(s.side_v + at, weights.vector(TensorRole::gdn_norm),
                                     s.side + at, context.spec.norm_eps, d.dim_v, s.side_v + at);
        }
      }
      quantize_for(context, w_out, mixed, begin, end);
    });
    multiply(context, member, {&output, 1});
    member.for_each(context.rows(), 1,
                    [&](int begin, int end) { add_branch(context, weights, begin, end); });
  });
}

}  // namespace tessera::cpu
