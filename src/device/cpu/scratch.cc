#include "device/cpu/scratch.h"

#include <algorithm>

#include "base/checked.h"
#include "device/cpu/attention.h"
#include "device/cpu/gated_delta.h"

namespace tessera::cpu {
namespace {

// The largest of every width over the shard's layers.
struct Widths {
  std::int64_t wide = 0, wide_out = 0, side = 0, side_v = 0, gate = 0, heads = 0, records = 0;
  std::int64_t dense_ff = 0, experts = 0, used = 0, expert_ff = 0;
  bool own_moe_norm = false, own_router_input = false;
  std::size_t thread_bytes = 0;
  std::size_t partial_floats = 0;

  static void raise(std::int64_t& width, std::int64_t to) { width = std::max(width, to); }

  void add(const AttentionSpec& a, const ShardLayout& shard) {
    const std::int64_t out = std::int64_t{a.n_head} * a.head_dim_v;
    const std::int64_t q = std::int64_t{a.n_head} * a.head_dim_k;
    raise(wide, a.gate == OutputGate::sigmoid_in_query ? 2 * q : q);
    raise(wide_out, out);
    raise(side, std::int64_t{a.n_kv_head} * a.head_dim_k);
    raise(side_v, std::int64_t{a.n_kv_head} * a.head_dim_v);
    if (a.gate == OutputGate::softplus_per_head) raise(gate, a.n_head);
    if (a.gate == OutputGate::softplus_per_element) raise(gate, out);
    raise(records, out);
    const AttentionTask task = largest_attention_task(a, shard.kv_type);
    thread_bytes = std::max(thread_bytes, attention_scratch_bytes(task));
    AttentionTask one_row = task;
    one_row.rows = 1;
    partial_floats = std::max(partial_floats, attention_partial_floats(one_row));
  }

  void add(const GatedDeltaSpec& g) {
    raise(wide, g.conv_channels());
    raise(wide_out, g.conv_channels());
    raise(side, g.value_width());
    raise(side_v, g.value_width());
    raise(heads, g.n_value_head);
    raise(records, g.value_width());
    thread_bytes =
        std::max(thread_bytes, delta_chunk_scratch_floats(g.dim_k, g.dim_v) * sizeof(float));
  }

  void add(const LayerSpec& layer) {
    if (layer.dense) raise(dense_ff, layer.dense->n_ff);
    if (layer.moe) {
      raise(experts, layer.moe->n_expert);
      raise(used, layer.moe->n_used);
      raise(expert_ff, layer.moe->n_ff);
      own_moe_norm |= layer.moe->own_norm;
      own_router_input |= layer.moe->router.own_input;
      const std::int64_t routing = 2 * std::int64_t{layer.moe->n_expert} + 2 * layer.moe->n_used;
      thread_bytes = std::max(thread_bytes, static_cast<std::size_t>(routing) * sizeof(float));
    }
  }
};

// Hands out 64-byte aligned pieces of `base`, or only counts them.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  void take(T*& pointer, std::int64_t count) {
    take_bytes(pointer, saturated_mul(count, std::int64_t{sizeof(T)}));
  }
  template <typename T>
  void take_bytes(T*& pointer, std::int64_t bytes) {
    pointer = base_ != nullptr && bytes > 0 ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ = saturated_add(used_, saturated_round_up(bytes, 64));
  }
  std::int64_t used() const { return used_; }
  void rewind(std::int64_t used) { used_ = used; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

void carve_mixer(Carver& carve, const Widths& w, std::int64_t rows, Scratch& out) {
  carve.take(out.wide, rows * w.wide);
  carve.take(out.wide_out, rows * w.wide_out);
  carve.take(out.side, rows * w.side);
  carve.take(out.side_v, rows * w.side_v);
  carve.take(out.gate, rows * w.gate);
  carve.take(out.heads, 4 * rows * w.heads);
  carve.take_bytes(out.mixed_records, activation_bytes(rows, w.records));
}

void carve_ffn(Carver& carve, const Widths& w, std::int64_t rows, std::int64_t embd,
               bool experts_away, Scratch& out) {
  carve.take(out.dense_gate, rows * w.dense_ff);
  carve.take(out.dense_up, rows * w.dense_ff);
  carve.take_bytes(out.dense_records, activation_bytes(rows, w.dense_ff));
  const std::int64_t pairs = rows * w.used;
  if (pairs == 0) return;
  if (w.own_router_input) carve.take(out.router_input, rows * embd);
  carve.take(out.router_logits, rows * w.experts);
  carve.take(out.pairs, pairs);
  carve.take(out.pair_rows, pairs);
  carve.take(out.pair_terms, pairs);
  carve.take(out.expert_ends, w.experts + 1);
  carve.take(out.experts_done, 2 * w.experts);
  carve.take(out.expert_gate, pairs * w.expert_ff);
  carve.take(out.expert_up, pairs * w.expert_ff);
  carve.take_bytes(out.pair_records, activation_bytes(pairs, w.expert_ff));
  carve.take(out.pair_out, pairs * embd);
  carve.take(out.moe_sum, rows * embd);
  if (experts_away) carve.take(out.sums_away, rows * embd);
}

}  // namespace

RopeTables rope_tables(const ModelSpec& spec) {
  RopeTables tables;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec* attention = layer.attention();
    if (attention == nullptr) {
      tables.of_layer.push_back(-1);
      continue;
    }
    const RopeSpec& rope = attention->rope;
    const auto same = [&](const RopeSpec* other) {
      return other->inv_freq == rope.inv_freq && other->magnitude == rope.magnitude;
    };
    auto found = std::find_if(tables.distinct.begin(), tables.distinct.end(), same);
    tables.of_layer.push_back(static_cast<int>(found - tables.distinct.begin()));
    if (found == tables.distinct.end()) tables.distinct.push_back(&rope);
  }
  std::int64_t floats = 0;
  for (const RopeSpec* rope : tables.distinct) {
    tables.offsets.push_back(floats);
    floats += static_cast<std::int64_t>(rope->inv_freq.size());
  }
  tables.offsets.push_back(floats);
  return tables;
}

AttentionTask largest_attention_task(const AttentionSpec& spec, KvType type) {
  AttentionTask task;
  task.geometry = {spec.n_kv_head, spec.head_dim_k, spec.head_dim_v, type};
  task.heads = spec.n_head / spec.n_kv_head;
  task.rows = attention_rows_per_task(task.heads);
  return task;
}

std::int64_t carve_scratch(const ModelSpec& spec, const ShardLayout& shard, int threads,
                           std::byte* base, Scratch& out) {
  Widths w;
  for (int l = shard.first_layer; l < shard.end_layer; ++l) {
    const LayerSpec& layer = spec.layers[static_cast<std::size_t>(l)];
    if (const AttentionSpec* a = layer.attention()) w.add(*a, shard);
    if (const GatedDeltaSpec* g = layer.gated_delta()) w.add(*g);
    w.add(layer);
  }
  const std::int64_t rows = shard.max_rows;
  const std::int64_t embd = spec.n_embd;

  Carver carve(base);
  carve.take(out.hidden, rows * embd);
  carve.take(out.normed, rows * embd);
  carve.take(out.branch, rows * embd);
  carve.take_bytes(out.normed_records, activation_bytes(rows, embd));
  if (w.own_moe_norm) {
    carve.take(out.moe_normed, rows * embd);
    carve.take_bytes(out.moe_records, activation_bytes(rows, embd));
  }
  // A layer's mixer is done before its FFN begins, so the two take turns in the same memory.
  const std::int64_t shared = carve.used();
  carve_mixer(carve, w, rows, out);
  const std::int64_t mixer_end = carve.used();
  carve.rewind(shared);
  carve_ffn(carve, w, rows, embd, !shard.experts.empty(), out);
  carve.rewind(std::max(mixer_end, carve.used()));

  if (shard.head) {
    carve.take(out.head_normed, shard.max_logit_rows * embd);
    carve.take_bytes(out.head_records, activation_bytes(shard.max_logit_rows, embd));
    carve.take(out.logits, std::int64_t{shard.max_logit_rows} * spec.n_vocab);
  }
  const std::int64_t rope_floats = rows * rope_tables(spec).floats_per_row();
  carve.take(out.rope_cos, rope_floats);
  carve.take(out.rope_sin, rope_floats);

  out.thread_stride = round_up<std::int64_t>(static_cast<std::int64_t>(w.thread_bytes), 64);
  carve.take_bytes(out.thread_bytes, threads * out.thread_stride);
  int pages = 0;
  for (int group_pages : shard.kv_pages) pages = std::max(pages, group_pages);
  // Spans are used only while there are fewer than two whole tasks a thread (attention_block.cc).
  // The pages of a window may begin anywhere in a span, hence one more than they would fill.
  const std::int64_t spans = 2 * threads * (std::int64_t{ceil_div(pages, kSpanPages)} + 1);
  out.partial_floats = static_cast<std::int64_t>(w.partial_floats);
  out.partial_count = spans;
  carve.take(out.partials, saturated_mul(spans, out.partial_floats));
  return carve.used();
}

}  // namespace tessera::cpu
