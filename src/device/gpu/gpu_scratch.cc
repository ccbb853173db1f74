#include <algorithm>

#include "base/checked.h"
#include "device/gpu/gpu_layout.h"
#include "device/gpu/kernels/dense_run.h"
#include "device/gpu/kernels/handover.h"
#include "device/gpu/kernels/run.h"

namespace tessera::gpu {
namespace {

// Longer than any model's: a client may ask for more pages than one sequence can have.
constexpr std::int64_t kMostContext = std::int64_t{1} << 30;

// The largest of every width over the shard's layers.
struct Widths {
  std::int64_t wide = 0, wide_out = 0, side = 0, side_v = 0, gate = 0, heads = 0;
  std::int64_t experts = 0, used = 0, workspace = 0;

  static void raise(std::int64_t& width, std::int64_t to) { width = std::max(width, to); }
  void work(std::size_t bytes) { raise(workspace, static_cast<std::int64_t>(bytes)); }
  void products(int rows, std::int64_t cols, std::int64_t weight_rows) {
    work(project_workspace(rows, static_cast<int>(cols), static_cast<int>(weight_rows)));
  }

  void add(const ModelSpec& spec, const AttentionSpec& a, const ShardLayout& shard) {
    const std::int64_t out = std::int64_t{a.n_head} * a.head_dim_v;
    const std::int64_t q = std::int64_t{a.n_head} * a.head_dim_k;
    raise(wide, a.gate == OutputGate::sigmoid_in_query ? 2 * q : q);
    raise(wide_out, out);
    raise(side, std::int64_t{a.n_kv_head} * a.head_dim_k);
    raise(side_v, std::int64_t{a.n_kv_head} * a.head_dim_v);
    if (a.gate == OutputGate::softplus_per_head) raise(gate, a.n_head);
    if (a.gate == OutputGate::softplus_per_element) raise(gate, out);
    AttentionArgs args;
    args.step = {.rows = shard.max_rows,
                 .n_sequences = std::min(shard.slots, shard.max_rows),
                 .max_sequence_rows = shard.max_rows};
    args.kv = {a.n_kv_head, a.head_dim_k, a.head_dim_v, kv_format(shard.kv_type)};
    args.n_head = a.n_head;
    args.window = a.window;
    args.gate = a.gate;
    args.max_context = static_cast<int>(std::min(table_stride(shard) * kPageTokens, kMostContext));
    work(attention_workspace(args));
    const std::int64_t kv = std::int64_t{a.n_kv_head} * (a.head_dim_k + a.head_dim_v);
    products(shard.max_rows, spec.n_embd, 2 * q + kv);
    products(shard.max_rows, out, spec.n_embd);
  }

  void add(const ModelSpec& spec, const GatedDeltaSpec& g, const ShardLayout& shard) {
    raise(wide, g.conv_channels());
    raise(side, g.value_width());
    raise(side_v, g.value_width());
    raise(heads, g.n_value_head);
    work(delta_workspace(g, shard.max_rows));
    products(shard.max_rows, spec.n_embd, g.conv_channels() + g.value_width());
    products(shard.max_rows, g.value_width(), spec.n_embd);
  }

  void add(const ModelSpec& spec, const LayerSpec& layer, const ExpertArena& layer_experts,
           const ShardLayout& shard) {
    FfnArgs args{.rows = shard.max_rows, .n_embd = spec.n_embd};
    if (layer.dense) {
      // Any address says that the matrix is there.
      static constexpr std::byte kPresent{};
      args.dense.gate = {.rows = layer.dense->n_ff, .cols = spec.n_embd, .data = &kPresent};
      args.dense.up = args.dense.gate;
      args.dense.down = {.rows = spec.n_embd, .cols = layer.dense->n_ff, .data = &kPresent};
    }
    if (layer.moe) {
      raise(experts, layer.moe->n_expert);
      raise(used, layer.moe->n_used);
      args.moe.n_expert = layer.moe->n_expert;
      args.moe.n_used = layer.moe->n_used;
      args.moe.n_ff = layer.moe->n_ff;
      args.moe.router = layer.moe->router;
      args.moe.shape = layer_experts.shape;
    }
    work(ffn_workspace(args));
  }
};

// Hands out 256-byte aligned pieces of `base`, or only counts them.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  void take(T*& pointer, std::int64_t count) {
    const std::int64_t bytes = saturated_mul(count, std::int64_t{sizeof(T)});
    pointer = base_ != nullptr && bytes > 0 ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ = saturated_add(used_, saturated_round_up(bytes, 256));
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

// The step's inputs, in integers. Every part is a multiple of 64, so that each begins at one of 256
// bytes.
struct InputSizes {
  InputSizes(const ModelSpec& spec, const ShardLayout& shard)
      : rows(aligned(shard.max_rows)),
        sequences(aligned(4 * shard.slots)),
        logit_rows(aligned(std::max(1, shard.max_logit_rows))),
        choices(
            aligned(shard.head ? shard.max_logit_rows * std::int64_t{sizeof(RowChoice) / 4} : 0)),
        table(aligned(table_stride(shard) * shard.slots)),
        groups(static_cast<std::int64_t>(kv_groups(spec).size())) {}

  std::int64_t all() const {
    return step + 3 * rows + sequences + logit_rows + choices + table * groups;
  }
  static std::int64_t aligned(std::int64_t ints) { return round_up<std::int64_t>(ints, 64); }

  std::int64_t step = aligned(1);
  std::int64_t rows, sequences, logit_rows, choices, table, groups;
};

void carve_inputs(Carver& carve, const ModelSpec& spec, const ShardLayout& shard, Scratch& out) {
  const InputSizes sizes(spec, shard);
  out.table_stride = table_stride(shard);
  out.input_ints = sizes.all();
  std::int32_t* at = nullptr;
  carve.take(at, out.input_ints);
  const auto next = [&](std::int64_t ints) {
    // A part that is not there is not where the next one begins.
    std::int32_t* here = ints > 0 ? at : nullptr;
    if (at != nullptr) at += ints;
    return here;
  };
  out.tokens = next(sizes.rows);
  out.positions = next(sizes.rows);
  out.sequence = next(sizes.rows);
  out.step = next(sizes.step);
  out.sequences = reinterpret_cast<Sequence*>(next(sizes.sequences));
  out.logit_rows = next(sizes.logit_rows);
  out.choices = reinterpret_cast<RowChoice*>(next(sizes.choices));
  out.tables.clear();
  for (std::int64_t g = 0; g < sizes.groups; ++g) out.tables.push_back(next(sizes.table));
}

void carve_ropes(Carver& carve, const ModelSpec& spec, const ShardLayout& shard, Scratch& out) {
  out.ropes.clear();
  out.rope_of_layer.assign(spec.layers.size(), -1);
  for (int l = shard.first_layer; l < shard.end_layer; ++l) {
    const auto layer = static_cast<std::size_t>(l);
    const AttentionSpec* a = spec.layers[layer].attention();
    if (a == nullptr || a->rope.n_rot == 0) continue;
    const auto same = [&](const RopeSpec* other) {
      return other->inv_freq == a->rope.inv_freq && other->magnitude == a->rope.magnitude;
    };
    const auto found = std::find_if(out.ropes.begin(), out.ropes.end(), same);
    out.rope_of_layer[layer] = static_cast<int>(found - out.ropes.begin());
    if (found == out.ropes.end()) out.ropes.push_back(&a->rope);
  }
  out.inv_freq.assign(out.ropes.size(), nullptr);
  out.cos = out.sin = out.inv_freq;
  for (std::size_t i = 0; i < out.ropes.size(); ++i) {
    const auto half = static_cast<std::int64_t>(out.ropes[i]->inv_freq.size());
    carve.take(out.inv_freq[i], half);
    carve.take(out.cos[i], shard.max_rows * half);
    carve.take(out.sin[i], shard.max_rows * half);
  }
}

int delta_nets(const ModelSpec& spec, const ShardLayout& shard) {
  return static_cast<int>(
      std::count_if(spec.layers.begin() + shard.first_layer, spec.layers.begin() + shard.end_layer,
                    [](const LayerSpec& layer) { return layer.gated_delta() != nullptr; }));
}
// Of the layer that attends with most heads.
std::int64_t query_columns(const ModelSpec& spec, const ShardLayout& shard) {
  std::int64_t most = 0;
  for (int l = shard.first_layer; l < shard.end_layer; ++l)
    if (const AttentionSpec* a = spec.layers[static_cast<std::size_t>(l)].attention())
      most = std::max(most, std::int64_t{a->n_head} * a->head_dim_v);
  return most;
}

void carve_runs(Carver& carve, const ModelSpec& spec, const ShardLayout& shard, Scratch& out) {
  std::size_t plans = 0, passed = 0, log = 0;
  const std::int64_t context = std::min(table_stride(shard) * kPageTokens, kMostContext);
  for (int l = shard.first_layer; l < shard.end_layer; ++l)
    if (layer_may_run(spec, shard, l)) plans += run_layer_bytes();
  if (plans > 0) {
    passed = run_passed_bytes(context);
  } else if (dense_layers_may_run(spec, shard)) {
    plans = dense_runs_bytes(shard.end_layer - shard.first_layer);
    passed = dense_passed_bytes(context, query_columns(spec, shard));
    log = dense_log_bytes(delta_nets(spec, shard));
  }
  carve.take(out.run_plans, static_cast<std::int64_t>(plans));
  out.run_passed_bytes = static_cast<std::int64_t>(passed);
  carve.take(out.run_passed, out.run_passed_bytes);
  out.run_log_bytes = static_cast<std::int64_t>(log);
  carve.take(out.run_log, static_cast<std::int64_t>(log / sizeof(float)));
}

// Matrices that runs multiply with as blocks.
bool is_multiplied(TensorRole role) {
  using enum TensorRole;
  constexpr TensorRole kRoles[] = {attn_q,   attn_k,  attn_v,   attn_output, gdn_qkv,
                                   gdn_gate, gdn_out, dense_up, dense_gate,  dense_down,
                                   moe_gate, moe_up,  moe_down};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

}  // namespace

std::int64_t input_ints(const ModelSpec& spec, const ShardLayout& shard) {
  return InputSizes(spec, shard).all();
}

bool layer_may_run(const ModelSpec& spec, const ShardLayout& shard, int layer) {
  return may_run(spec, spec.layers[static_cast<std::size_t>(layer)]) &&
         shard.layer_lacking(layer) == nullptr;
}

bool dense_layers_may_run(const ModelSpec& spec, const ShardLayout& shard) {
  return std::any_of(spec.layers.begin() + shard.first_layer, spec.layers.begin() + shard.end_layer,
                     [&](const LayerSpec& layer) { return may_run_dense(spec, layer); });
}

bool layers_may_run(const Model& model) {
  const ModelSpec& spec = model.spec();
  return std::all_of(spec.layers.begin(), spec.layers.end(),
                     [&](const LayerSpec& layer) { return may_run(spec, layer); }) &&
         std::all_of(model.tensors().begin(), model.tensors().end(), [](const TensorSlice& slice) {
           return slice.layer < 0 || !is_multiplied(slice.role) || slice.type == BlockType::Q4_K ||
                  slice.type == BlockType::Q6_K;
         });
}

std::int64_t carve_scratch(const ModelSpec& spec, const ShardLayout& shard,
                           const WeightLayout& weights, std::byte* base, Scratch& out) {
  Widths w;
  const std::int64_t rows = shard.max_rows;
  const std::int64_t embd = spec.n_embd;
  for (int l = shard.first_layer; l < shard.end_layer; ++l) {
    const LayerSpec& layer = spec.layers[static_cast<std::size_t>(l)];
    if (const AttentionSpec* a = layer.attention()) w.add(spec, *a, shard);
    if (const GatedDeltaSpec* g = layer.gated_delta()) w.add(spec, *g, shard);
    w.add(spec, layer, weights.experts[static_cast<std::size_t>(l - shard.first_layer)], shard);
  }
  if (shard.head) {
    w.products(shard.max_logit_rows, spec.n_embd, spec.n_vocab);
    w.work(choose_workspace(shard.max_logit_rows));
  }

  Carver carve(base);
  carve_inputs(carve, spec, shard, out);
  carve.take(out.hidden, rows * embd);
  carve.take(out.kept, shard.kept_pieces * rows * embd);
  carve.take(out.branch, rows * embd);
  carve.take(out.wide, rows * w.wide);
  carve.take(out.wide_out, rows * w.wide_out);
  carve.take(out.side, rows * w.side);
  carve.take(out.side_v, rows * w.side_v);
  carve.take(out.gate, rows * w.gate);
  carve.take(out.heads, 2 * rows * w.heads);
  carve.take(out.dense_out, rows * embd);
  carve.take(out.router_logits, rows * w.experts);
  carve.take(out.ids, rows * w.used);
  carve.take(out.weights, rows * w.used);
  carve.take(out.pair_out, rows * w.used * embd);
  if (weights.stream.groups > 0)
    for (std::int32_t*& ids : out.foreseen) carve.take(ids, kDecodeRows * w.used);
  if (shard.head) {
    carve.take(out.logits, std::int64_t{shard.max_logit_rows} * spec.n_vocab);
    out.most_changes = std::int64_t{kMostChanges} * shard.max_logit_rows;
    carve.take(out.changes, out.most_changes);
    carve.take(out.before, out.most_changes);
    carve.take(out.banned, static_cast<std::int64_t>(spec.suppressed_tokens.size()));
    carve.take(out.chosen, shard.max_logit_rows);
  }
  carve_ropes(carve, spec, shard, out);
  out.workspace_bytes = w.workspace;
  carve.take(out.workspace, w.workspace);
  carve_runs(carve, spec, shard, out);
  if (!shard.embedding) carve.take(out.handed, handover_bytes(kDecodeRows * embd));
  return carve.used();
}

}  // namespace tessera::gpu
