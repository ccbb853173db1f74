#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "device/cpu/expert_pass.h"
#include "device/cpu/step_context.h"

namespace tessera::cpu {
namespace {

void activate(const StepContext& context, Activation activation, float* gate, const float* up,
              std::int64_t n) {
  if (activation == Activation::silu) {
    context.ops.silu_mul(gate, up, n, gate);
  } else {
    context.ops.gelu_tanh_mul(gate, up, n, gate);
  }
}

// What the experts read: the FFN norm of the residual, or their own.
Activations expert_input(const StepContext& context, const MoeSpec& moe) {
  const Scratch& s = context.scratch;
  return activations(moe.own_norm ? s.moe_normed : s.normed, context.max_rows, context.n_embd(),
                     moe.own_norm ? s.moe_records : s.normed_records);
}

void norm_expert_rows(const StepContext& context, const LayerWeights& weights, const MoeSpec& moe,
                      int begin, int end) {
  const Scratch& s = context.scratch;
  const int n = context.n_embd();
  for (int row = begin; row < end; ++row) {
    const std::int64_t at = std::int64_t{row} * n;
    if (moe.own_norm)
      context.ops.rms_norm(context.hidden_row(row), weights.vector(TensorRole::moe_norm),
                           context.spec.norm_eps, n, s.moe_normed + at);
    if (moe.router.own_input) {
      float* input = s.router_input + at;
      context.ops.rms_norm(context.hidden_row(row), weights.vector(TensorRole::router_scale),
                           context.spec.norm_eps, n, input);
      context.ops.scale(input, 1.0f / std::sqrt(static_cast<float>(n)), n, input);
    }
  }
  if (moe.own_norm && weights.reads_records)
    quantize_rows(context.matmul, expert_input(context, moe), begin, end);
}

void choose_experts(const StepContext& context, TeamMember& member, const LayerWeights& weights,
                    const MoeSpec& moe, int row) {
  const Scratch& s = context.scratch;
  const float* logits = s.router_logits + std::int64_t{row} * moe.n_expert;
  auto* scratch = reinterpret_cast<float*>(context.thread_bytes(member));
  float* pair_weights = scratch + 2 * moe.n_expert;
  auto* ids = reinterpret_cast<std::int32_t*>(pair_weights + moe.n_used);
  route_row(context.ops, moe, logits, weights.vector(TensorRole::router_bias),
            weights.vector(TensorRole::expert_scale), scratch, ids, pair_weights);
  RoutedPair* pairs = s.pairs + std::int64_t{row} * moe.n_used;
  for (int slot = 0; slot < moe.n_used; ++slot) {
    pairs[slot] = {.row = row, .expert = ids[slot], .slot = slot, .weight = pair_weights[slot]};
  }
  std::fill_n(s.pair_terms + std::int64_t{row} * moe.n_used, moe.n_used, WeightedRow{});
}

// The weighted sum of a row's experts, wherever they were computed.
void sum_experts(const StepContext& context, const MoeSpec& moe, int row, float* out) {
  const Scratch& s = context.scratch;
  const std::int64_t n = context.n_embd();
  context.ops.sum_rows(s.pair_terms + std::int64_t{row} * moe.n_used, moe.n_used,
                       context.sums_came ? s.sums_away + row * n : nullptr, n, out);
}

}  // namespace

void route_block(StepContext& context, int layer) {
  const LayerSpec& spec = context.layer(layer);
  const LayerWeights& weights = context.weights.layer(layer);
  const Scratch& s = context.scratch;
  context.pairs_done = 0;
  context.sums_came = false;
  context.n_used = spec.moe ? spec.moe->n_used : 0;
  context.team.run([&](TeamMember& member) {
    norm_rows(context, member, weights, TensorRole::ffn_norm);
    if (!spec.moe) return;
    const MoeSpec& moe = *spec.moe;
    if (moe.own_norm || moe.router.own_input)
      member.for_each(context.rows(), 1, [&](int begin, int end) {
        norm_expert_rows(context, weights, moe, begin, end);
      });
    const Activations x = moe.router.own_input ? activations(s.router_input, context.max_rows,
                                                             context.n_embd(), nullptr)
                                               : expert_input(context, moe);
    const Product logits{.w = &weights.matrix(TensorRole::router),
                         .x = x,
                         .n_rows = context.rows(),
                         .out = s.router_logits,
                         .out_stride = moe.n_expert};
    multiply(context, member, {&logits, 1});
    member.for_each(context.rows(), 1, [&](int begin, int end) {
      for (int row = begin; row < end; ++row) choose_experts(context, member, weights, moe, row);
    });
  });
}

void experts_block(StepContext& context, int layer, std::span<const RoutedPair> pairs) {
  const LayerSpec& spec = context.layer(layer);
  if (!spec.moe || pairs.empty()) return;
  const MoeSpec& moe = *spec.moe;
  const Scratch& s = context.scratch;
  ExpertPass pass({.matmul = context.matmul,
                   .ops = context.ops,
                   .moe = moe,
                   .weights = context.weights.layer(layer)},
                  {.pair_rows = s.pair_rows,
                   .expert_ends = s.expert_ends,
                   .done = s.experts_done,
                   .gate = s.expert_gate,
                   .up = s.expert_up,
                   .records = s.pair_records,
                   .out = s.pair_out,
                   .pairs = std::int64_t{context.max_rows} * moe.n_used,
                   .active = &context.active_experts});
  pass.sort(pairs, context.pairs_done, [&](std::size_t i, std::int32_t place) {
    s.pair_terms[std::int64_t{pairs[i].row} * moe.n_used + pairs[i].slot] = {
        .x = s.pair_out + std::int64_t{place} * context.n_embd(), .weight = pairs[i].weight};
  });
  const Activations x = expert_input(context, moe);
  context.team.run([&](TeamMember& member) { pass.run(member, x); });
  context.pairs_done += static_cast<int>(pairs.size());
}

std::span<const float> expert_rows(const StepContext& context, int layer) {
  const Activations x = expert_input(context, *context.layer(layer).moe);
  return {x.rows, static_cast<std::size_t>(context.rows()) * static_cast<std::size_t>(x.cols)};
}

void add_sums_block(StepContext& context, std::span<const std::int32_t> rows,
                    std::span<const double> sums) {
  const std::int64_t n = context.n_embd();
  CHECK(sums.size() == rows.size() * static_cast<std::size_t>(n));
  double* all = context.scratch.sums_away;
  context.team.run([&](TeamMember& member) {
    if (!context.sums_came)
      member.for_each(context.rows(), 1, [&](int begin, int end) {
        std::fill_n(all + begin * n, (end - begin) * n, 0.0);
      });
    member.for_each(static_cast<int>(rows.size()), 1, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        double* row = all + rows[static_cast<std::size_t>(i)] * n;
        const double* more = sums.data() + i * n;
        for (std::int64_t c = 0; c < n; ++c) row[c] += more[c];
      }
    });
  });
  context.sums_came = true;
}

void dense_block(StepContext& context, int layer) {
  const LayerSpec& spec = context.layer(layer);
  if (!spec.dense) return;
  const DenseFfnSpec& dense = *spec.dense;
  const LayerWeights& weights = context.weights.layer(layer);
  const Scratch& s = context.scratch;
  const Activations x = activations(s.normed, context.max_rows, context.n_embd(), s.normed_records);
  const Activations hidden =
      activations(s.dense_gate, context.max_rows, dense.n_ff, s.dense_records);
  const WeightMatrix& down = weights.matrix(TensorRole::dense_down);
  const std::array<Product, 2> up = {Product{.w = &weights.matrix(TensorRole::dense_gate),
                                             .x = x,
                                             .n_rows = context.rows(),
                                             .out = s.dense_gate,
                                             .out_stride = dense.n_ff},
                                     Product{.w = &weights.matrix(TensorRole::dense_up),
                                             .x = x,
                                             .n_rows = context.rows(),
                                             .out = s.dense_up,
                                             .out_stride = dense.n_ff}};
  const Product output{.w = &down,
                       .x = hidden,
                       .n_rows = context.rows(),
                       .out = s.branch,
                       .out_stride = context.n_embd()};
  context.team.run([&](TeamMember& member) {
    multiply(context, member, up);
    member.for_each(context.rows(), 1, [&](int begin, int end) {
      for (int row = begin; row < end; ++row)
        activate(context, dense.activation, s.dense_gate + std::int64_t{row} * dense.n_ff,
                 s.dense_up + std::int64_t{row} * dense.n_ff, dense.n_ff);
      quantize_for(context, down, hidden, begin, end);
    });
    multiply(context, member, {&output, 1});
  });
}

namespace {

// The dense branch of a row, gated and normed.
void finish_dense_row(const StepContext& context, const LayerWeights& weights,
                      const DenseFfnSpec& dense, int row) {
  const int n = context.n_embd();
  float* out = context.branch_row(row);
  if (dense.scalar_gate) {
    float gate = context.ops.dot(context.scratch.normed + std::int64_t{row} * n,
                                 weights.vector(TensorRole::dense_scalar_gate), n);
    context.ops.sigmoid(&gate, 1, &gate);
    context.ops.scale(out, gate, n, out);
  }
  if (dense.post_norm)
    context.ops.rms_norm(out, weights.vector(TensorRole::dense_post_norm), context.spec.norm_eps, n,
                         out);
}

void finish_row(const StepContext& context, const LayerSpec& spec, const LayerWeights& weights,
                int row, float* moe_sum) {
  const int n = context.n_embd();
  const float eps = context.spec.norm_eps;
  float* out = context.branch_row(row);
  if (spec.dense) finish_dense_row(context, weights, *spec.dense, row);
  if (spec.moe) {
    sum_experts(context, *spec.moe, row, moe_sum);
    if (spec.moe->post_norm)
      context.ops.rms_norm(moe_sum, weights.vector(TensorRole::moe_post_norm), eps, n, moe_sum);
    if (spec.dense) {
      context.ops.add(moe_sum, out, n, out);
    } else {
      out = moe_sum;
    }
  }
  if (spec.ffn_post_norm)
    context.ops.rms_norm(out, weights.vector(TensorRole::ffn_post_norm), eps, n, out);
  float* hidden = context.hidden_row(row);
  context.ops.add(hidden, out, n, hidden);
  if (spec.layer_scale)
    context.ops.scale(hidden, *weights.vector(TensorRole::layer_scale), n, hidden);
}

}  // namespace

void finish_ffn_block(StepContext& context, int layer) {
  const LayerSpec& spec = context.layer(layer);
  const LayerWeights& weights = context.weights.layer(layer);
  context.team.run([&](TeamMember& member) {
    member.for_each(context.rows(), 1, [&](int begin, int end) {
      for (int row = begin; row < end; ++row)
        finish_row(context, spec, weights, row,
                   context.scratch.moe_sum + std::int64_t{row} * context.n_embd());
    });
  });
}

}  // namespace tessera::cpu
