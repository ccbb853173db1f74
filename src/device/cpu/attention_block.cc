#include <algorithm>
#include <array>

#include "base/check.h"
#include "device/cpu/step_context.h"

namespace tessera::cpu {
namespace {

// One attention layer: its number, and its widths in floats.
struct Shape {
  Shape(int layer, const AttentionSpec& a)
      : layer(layer),
        q_head(a.gate == OutputGate::sigmoid_in_query ? 2 * a.head_dim_k : a.head_dim_k),
        q(std::int64_t{a.n_head} * q_head),
        k(std::int64_t{a.n_kv_head} * a.head_dim_k),
        v(std::int64_t{a.n_kv_head} * a.head_dim_v),
        out(std::int64_t{a.n_head} * a.head_dim_v) {}

  int layer;
  std::int64_t q_head;  // from one query head to the next
  std::int64_t q, k, v, out;
};

void project_attention(const StepContext& context, TeamMember& member, const AttentionSpec& a,
                       const LayerWeights& weights, const Shape& shape) {
  const Scratch& s = context.scratch;
  const Activations x = activations(s.normed, context.max_rows, context.n_embd(), s.normed_records);
  std::array<Product, 4> products;
  std::size_t n = 0;
  const auto add = [&](TensorRole role, float* out, std::int64_t width) {
    products[n++] = {.w = &weights.matrix(role),
                     .x = x,
                     .n_rows = context.rows(),
                     .out = out,
                     .out_stride = width};
  };
  add(TensorRole::attn_q, s.wide, shape.q);
  if (a.kv_source < 0) {
    add(TensorRole::attn_k, s.side, shape.k);
    if (!a.value_is_key) add(TensorRole::attn_v, s.side_v, shape.v);
  }
  if (a.gate == OutputGate::softplus_per_head) add(TensorRole::attn_gate, s.gate, a.n_head);
  if (a.gate == OutputGate::softplus_per_element) add(TensorRole::attn_gate, s.gate, shape.out);
  multiply(context, member, std::span(products).first(n));
}

// Head norms, rotation, and the row's key and value into its page.
void place_row(const StepContext& context, const AttentionSpec& a, const LayerWeights& weights,
               const Shape& shape, int row) {
  const Scratch& s = context.scratch;
  const float eps = context.spec.norm_eps;
  const std::int64_t half = a.rope.n_rot / 2;
  const std::int64_t table = context.ropes.offset(shape.layer) * context.max_rows;
  const float* cos = s.rope_cos + table + row * half;
  const float* sin = s.rope_sin + table + row * half;

  float* q = s.wide + row * shape.q;
  for (int h = 0; h < a.n_head; ++h) {
    float* head = q + h * shape.q_head;
    if (a.qk_norm)
      context.ops.rms_norm(head, weights.vector(TensorRole::attn_q_norm), eps, a.head_dim_k, head);
    context.ops.rope(head, a.rope.n_rot, cos, sin);
  }
  if (a.kv_source >= 0) return;

  float* k = s.side + row * shape.k;
  float* v = s.side_v + row * shape.v;
  if (a.value_is_key) std::copy_n(k, shape.v, v);
  for (int h = 0; h < a.n_kv_head; ++h) {
    float* head = k + h * a.head_dim_k;
    if (a.qk_norm)
      context.ops.rms_norm(head, weights.vector(TensorRole::attn_k_norm), eps, a.head_dim_k, head);
    context.ops.rope(head, a.rope.n_rot, cos, sin);
    float* value = v + h * a.head_dim_v;
    if (a.v_norm) context.ops.rms_norm(value, nullptr, eps, a.head_dim_v, value);
  }
  const LayerKv& kv = context.state.kv(shape.layer);
  const int position = context.row_position[static_cast<std::size_t>(row)];
  const std::int32_t page =
      context.sequence_of(row).pages[static_cast<std::size_t>(kv.group)]
                                    [static_cast<std::size_t>(position / kPageTokens)];
  std::byte* layer_page =
      context.state.pool(kv.group) + page * context.state.page_bytes(kv.group) + kv.offset;
  store_kv(kv.geometry, layer_page, position % kPageTokens, k, v);
}

// What a member computes at a time: one KV head over some rows of a sequence.
struct Tile {
  int kv_head = 0;
  int first = 0;  // of the sequence's rows in the batch
  int rows = 0;
};

AttentionTask make_task(const StepContext& context, const AttentionSpec& a, const Shape& shape,
                        const SequenceRows& sequence, const Tile& tile) {
  const LayerKv& kv = context.state.kv(shape.layer);
  const int heads = a.n_head / a.n_kv_head;
  const int row = sequence.first_row + tile.first;
  return {.geometry = kv.geometry,
          .pool = context.state.pool(kv.group),
          .page_stride = context.state.page_bytes(kv.group),
          .layer_offset = kv.offset,
          .pages = sequence.pages[static_cast<std::size_t>(kv.group)].data(),
          .kv_head = tile.kv_head,
          .heads = heads,
          .rows = tile.rows,
          .first_position = sequence.first_position + tile.first,
          .q = context.scratch.wide + row * shape.q + tile.kv_head * heads * shape.q_head,
          .q_row_stride = shape.q,
          .q_head_stride = shape.q_head,
          .out = context.scratch.wide_out + row * shape.out +
                 std::int64_t{tile.kv_head} * heads * a.head_dim_v,
          .out_row_stride = shape.out,
          .out_head_stride = a.head_dim_v,
          .scale = a.scale,
          .softcap = a.softcap,
          .window = a.window};
}

// Cuts the batch into tasks. Where there are too few to keep the team busy, those of one row are
// cut further, into spans of their context.
void plan_work(StepContext& context, const AttentionSpec& a, const Shape& shape) {
  std::vector<StepContext::AttentionWork>& work = context.attention_work;
  work.clear();
  const int most = attention_rows_per_task(a.n_head / a.n_kv_head);
  for (const SequenceRows& sequence : context.batch.sequences)
    for (int first = 0; first < sequence.n_rows; first += most)
      for (int head = 0; head < a.n_kv_head; ++head) {
        const Tile tile{
            .kv_head = head, .first = first, .rows = std::min(most, sequence.n_rows - first)};
        work.push_back({make_task(context, a, shape, sequence, tile)});
      }
  const std::size_t whole = work.size();
  if (context.team.size() == 1 || whole >= 2 * static_cast<std::size_t>(context.team.size()))
    return;
  float* partial = context.scratch.partials;
  const float* end = partial + context.scratch.partial_count * context.scratch.partial_floats;
  for (std::size_t i = 0; i < whole; ++i) {
    const AttentionTask task = work[i].task;
    const int spans = attention_spans(task);
    if (task.rows != 1 || spans < 2) continue;
    CHECK(partial + spans * context.scratch.partial_floats <= end);
    work[i].span = 0;
    work[i].partial = partial;
    for (int span = 1; span < spans; ++span)
      work.push_back({task, span, partial + span * context.scratch.partial_floats});
    partial += spans * context.scratch.partial_floats;
  }
}

void attend_all(StepContext& context, TeamMember& member) {
  const auto& work = context.attention_work;
  member.for_each(static_cast<int>(work.size()), 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const auto& item = work[static_cast<std::size_t>(i)];
      if (item.span < 0) {
        attend(context.attention, item.task, context.thread_bytes(member));
      } else {
        attend_span(context.attention, item.task, item.span, context.thread_bytes(member),
                    item.partial);
      }
    }
  });
  if (std::none_of(work.begin(), work.end(), [](const auto& item) { return item.span >= 0; }))
    return;
  member.for_each(static_cast<int>(work.size()), 1, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const auto& item = work[static_cast<std::size_t>(i)];
      if (item.span == 0) combine_spans(context.attention, item.task, item.partial);
    }
  });
}

void gate_row(const StepContext& context, const AttentionSpec& a, const Shape& shape, int row) {
  const Scratch& s = context.scratch;
  float* out = s.wide_out + row * shape.out;
  switch (a.gate) {
    case OutputGate::none:
      break;
    case OutputGate::sigmoid_in_query:
      for (int h = 0; h < a.n_head; ++h) {
        float* head = out + std::int64_t{h} * a.head_dim_v;
        const float* gate = s.wide + row * shape.q + h * shape.q_head + a.head_dim_k;
        context.ops.sigmoid_mul(head, gate, a.head_dim_v, head);
      }
      break;
    case OutputGate::softplus_per_head:
      context.ops.softplus_mul_heads(out, s.gate + std::int64_t{row} * a.n_head, a.n_head,
                                     a.head_dim_v, out);
      break;
    case OutputGate::softplus_per_element:
      context.ops.softplus_mul(out, s.gate + row * shape.out, shape.out, out);
      break;
  }
}

}  // namespace

void attention_block(StepContext& context, int layer) {
  const AttentionSpec& a = *context.layer(layer).attention();
  const LayerWeights& weights = context.weights.layer(layer);
  const Scratch& s = context.scratch;
  const Shape shape(layer, a);
  const WeightMatrix& w_out = weights.matrix(TensorRole::attn_output);
  const Activations mixed = activations(s.wide_out, context.max_rows, shape.out, s.mixed_records);
  const Product output{.w = &w_out,
                       .x = mixed,
                       .n_rows = context.rows(),
                       .out = s.branch,
                       .out_stride = context.n_embd()};
  plan_work(context, a, shape);

  context.team.run([&](TeamMember& member) {
    norm_rows(context, member, weights, TensorRole::mixer_norm);
    project_attention(context, member, a, weights, shape);
    member.for_each(context.rows(), 1, [&](int begin, int end) {
      for (int row = begin; row < end; ++row) place_row(context, a, weights, shape, row);
    });
    attend_all(context, member);
    member.for_each(context.rows(), 1, [&](int begin, int end) {
      for (int row = begin; row < end; ++row) gate_row(context, a, shape, row);
      quantize_for(context, w_out, mixed, begin, end);
    });
    multiply(context, member, {&output, 1});
    member.for_each(context.rows(), 1,
                    [&](int begin, int end) { add_branch(context, weights, begin, end); });
  });
}

}  // namespace tessera::cpu
