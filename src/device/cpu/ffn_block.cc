#include <algorithm>
#include <array>
#include <cmath>

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
}

// Groups the pairs by expert, rows rising within one: each expert's weights are read once for all
// its rows.
void sort_by_expert(StepContext& context, const MoeSpec& moe, std::span<const RoutedPair> pairs) {
  const Scratch& s = context.scratch;
  std::int32_t* ends = s.expert_ends;
  std::fill_n(ends, moe.n_expert + 1, context.pairs_done);
  for (const RoutedPair& pair : pairs) ++ends[pair.expert + 1];
  for (int e = 0; e < moe.n_expert; ++e) ends[e + 1] += ends[e] - context.pairs_done;
  // ends[e] is now where expert e starts; filling moves it to where e ends.
  for (const RoutedPair& pair : pairs) {
    const std::int32_t place = ends[pair.expert]++;
    s.pair_rows[place] = pair.row;
    s.pair_places[std::int64_t{pair.row} * moe.n_used + pair.slot] = place;
  }
  context.active_experts.clear();
  for (int e = 0; e < moe.n_expert; ++e)
    if (ends[e] > (e == 0 ? context.pairs_done : ends[e - 1])) context.active_experts.push_back(e);
}

struct ExpertRows {
  int first;
  int count;
};
ExpertRows rows_of(const StepContext& context, int expert) {
  const std::int32_t* ends = context.scratch.expert_ends;
  const int first = expert == 0 ? context.pairs_done : ends[expert - 1];
  return {first, ends[expert] - first};
}

// Calls f(expert, role, group range) for every matrix of `roles` of every active expert, cut into
// pieces.
template <typename F>
void for_each_expert_piece(const StepContext& context, TeamMember& member,
                           std::span<const TensorRole> roles, const LayerWeights& weights, F f) {
  const int groups = static_cast<int>(weights.matrix(roles[0]).groups());
  const int matrices = static_cast<int>(context.active_experts.size() * roles.size());
  // About eight pieces a member, but no smaller than what hides the cost of handing one out.
  const int wanted = std::max(1, matrices * groups / (member.size() * 8));
  const int piece = std::clamp(wanted, std::min(4, groups), groups);
  const int pieces = (groups + piece - 1) / piece;
  member.for_each(matrices * pieces, 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const int matrix = i / pieces;
      const int first = i % pieces * piece;
      const int n_roles = static_cast<int>(roles.size());
      f(context.active_experts[static_cast<std::size_t>(matrix / n_roles)],
        roles[static_cast<std::size_t>(matrix % n_roles)], first, std::min(groups, first + piece));
    }
  });
}

void expert_hidden(const StepContext& context, TeamMember& member, const LayerWeights& weights,
                   const MoeSpec& moe) {
  const Scratch& s = context.scratch;
  const Activations x = expert_input(context, moe);
  constexpr std::array roles = {TensorRole::moe_gate, TensorRole::moe_up};
  for_each_expert_piece(context, member, roles, weights,
                        [&](int expert, TensorRole role, int begin, int end) {
                          const ExpertRows rows = rows_of(context, expert);
                          float* out = role == TensorRole::moe_gate ? s.expert_gate : s.expert_up;
                          matmul(context.matmul, weights.expert(role, expert), begin, end, x,
                                 {s.pair_rows + rows.first, static_cast<std::size_t>(rows.count)},
                                 rows.count, out + std::int64_t{rows.first} * moe.n_ff, moe.n_ff);
                        });
}

void expert_output(const StepContext& context, TeamMember& member, const LayerWeights& weights,
                   const Activations& hidden) {
  const Scratch& s = context.scratch;
  constexpr std::array roles = {TensorRole::moe_down};
  for_each_expert_piece(
      context, member, roles, weights, [&](int expert, TensorRole role, int begin, int end) {
        const ExpertRows rows = rows_of(context, expert);
        Activations x = hidden;
        x.rows += rows.first * x.stride;
        x.records += rows.first;
        matmul(context.matmul, weights.expert(role, expert), begin, end, x, {}, rows.count,
               s.pair_out + std::int64_t{rows.first} * context.n_embd(), context.n_embd());
      });
}

// The weighted sum of a row's experts, slots in order.
void sum_experts(const StepContext& context, const MoeSpec& moe, int row, float* out) {
  const Scratch& s = context.scratch;
  std::fill_n(out, context.n_embd(), 0.0f);
  for (int slot = 0; slot < moe.n_used; ++slot) {
    const std::int64_t i = std::int64_t{row} * moe.n_used + slot;
    context.ops.add_scaled(s.pair_out + std::int64_t{s.pair_places[i]} * context.n_embd(),
                           s.pairs[i].weight, context.n_embd(), out);
  }
}

}  // namespace

void route_block(StepContext& context, int layer) {
  const LayerSpec& spec = context.layer(layer);
  const LayerWeights& weights = context.weights.layer(layer);
  const Scratch& s = context.scratch;
  context.pairs_done = 0;
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
  if (!spec.moe) return;
  const MoeSpec& moe = *spec.moe;
  const LayerWeights& weights = context.weights.layer(layer);
  const Scratch& s = context.scratch;
  if (pairs.empty()) return;
  sort_by_expert(context, moe, pairs);
  const Activations hidden = activations(s.expert_gate, std::int64_t{context.max_rows} * moe.n_used,
                                         moe.n_ff, s.pair_records);
  const int first = context.pairs_done;
  const int count = static_cast<int>(pairs.size());
  context.team.run([&](TeamMember& member) {
    expert_hidden(context, member, weights, moe);
    member.for_each(count, 1, [&](int begin, int end) {
      for (int i = first + begin; i < first + end; ++i)
        activate(context, moe.activation, s.expert_gate + std::int64_t{i} * moe.n_ff,
                 s.expert_up + std::int64_t{i} * moe.n_ff, moe.n_ff);
      quantize_for(context, weights.matrix(TensorRole::moe_down), hidden, first + begin,
                   first + end);
    });
    expert_output(context, member, weights, hidden);
  });
  context.pairs_done += count;
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
  const PackedMatrix& down = weights.matrix(TensorRole::dense_down);
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
