#include "device/gpu/kernels/dense_run_fits.h"

#include "device/gpu/kernels/dense_run.h"

namespace tessera::gpu {
namespace dense_run {

UpCut up_cut(std::int64_t hidden) {
  constexpr int kColumns = 2 * kTileRows * kBlocks;
  int rounds = static_cast<int>(hidden / kColumns);
  while (rounds * kColumns % kSuperCols != 0) --rounds;
  return {rounds, static_cast<int>(hidden / kTileRows) - 2 * kBlocks * rounds};
}

namespace {

// Of a row: halves of whole turns, as many as make project() take it so too (stream_line.cuh).
bool has_row(std::int64_t cols, int most) {
  return cols % (2 * kTogether * kSuperCols) == 0 && supers_of(cols) >= kLeastSupers &&
         supers_of(cols) <= most;
}
bool fills_blocks(std::int64_t rows, std::int64_t cols) {
  constexpr int kLeastEach = 3 * 16;  // has_project_stream()
  return rows / kTileRows * supers_of(cols) >= kLeastEach * kBlocks;
}
bool is_k_matrix(const Matrix& w, std::int64_t rows, std::int64_t cols) {
  return (w.type == BlockType::Q4_K || w.type == BlockType::Q6_K) && w.rows == rows &&
         w.cols == cols && rows % kTileRows == 0;
}
bool has_heads(const GatedDeltaSpec& d) {
  return d.dim_k == kDim && d.dim_v == kDim && d.conv_width == kTaps && d.n_key_head > 0 &&
         d.n_value_head % d.n_key_head == 0 && 2 * d.n_value_head <= kBlocks;
}

constexpr int each(int tiles) {
  return (tiles + kBlocks - 1) / kBlocks;
}
bool fits_columns(std::int64_t embd, std::int64_t mixed, std::int64_t hidden) {
  if (!has_row(embd, kMostEmbd) || !has_row(mixed, kMostMixed) || !has_row(hidden, kMostHidden))
    return false;
  const UpCut up = up_cut(hidden);
  return fills_blocks(embd, mixed) && fills_blocks(embd, hidden) && fills_blocks(hidden, embd) &&
         each(static_cast<int>(embd / kTileRows)) <= kMostOut && up.rounds > 0 &&
         4 * up.rounds + 2 * each(up.left) <= kMostUp;
}
bool fits_in(std::int64_t rows, std::int64_t embd) {
  return fills_blocks(rows, embd) && each(static_cast<int>(rows / kTileRows)) <= kMostIn;
}

bool has_query_heads(int heads, int kv_heads, int dim_k, int dim_v) {
  return kv_heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= kMostGroup &&
         dim_k == dim_v && (dim_k == kMostHeadDim || dim_k == kMostHeadDim / 2);
}
bool has_gates(OutputGate gate) {
  return gate == OutputGate::none || gate == OutputGate::sigmoid_in_query;
}
bool fits_query_heads(const RunLayer& l) {
  const AttentionArgs& a = l.attention;
  const int stride = a.kv.head_dim_k * (a.gate == OutputGate::none ? 1 : 2);
  const int keys = a.kv.kv_heads * a.kv.head_dim_k;
  const auto& in = l.in.outputs;
  return l.in.n_outputs == 3 && l.out.input.kind == InputKind::plain &&
         has_query_heads(a.n_head, a.kv.kv_heads, a.kv.head_dim_k, a.kv.head_dim_v) &&
         has_gates(a.gate) && a.q_head_stride == stride && in[0].w.rows == a.n_head * stride &&
         in[1].w.rows == keys && in[2].w.rows == keys &&
         l.out.outputs[0].w.cols == a.n_head * a.kv.head_dim_v && a.kv.format == KvFormat::f16 &&
         (reinterpret_cast<std::uintptr_t>(a.pool) + static_cast<std::uintptr_t>(a.layer_offset)) %
                 16 ==
             0 &&
         a.page_stride % 16 == 0 && a.k != nullptr && a.v != nullptr && !a.v_norm &&
         a.n_rot <= a.kv.head_dim_k && a.softcap == 0 && a.window == 0;
}

bool fits_mixer(const RunLayer& l, int embd) {
  const auto& in = l.in.outputs;
  const int outputs = has_attention(l) ? 3 : 2;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(outputs); ++i) {
    if (!is_k_matrix(in[i].w, in[i].w.rows, embd) || in[i].add) return false;
    rows += in[i].w.rows;
  }
  if (!fits_in(rows, embd)) return false;
  if (has_attention(l)) return fits_query_heads(l);
  const GatedDeltaSpec& d = l.delta.spec;
  const auto is_plain_row = [&](const Matrix& w) {
    return is_plain(w.type) && w.rows == d.n_value_head && w.cols == embd;
  };
  return l.in.n_outputs == 4 && has_heads(d) && in[0].w.rows == d.conv_channels() &&
         in[1].w.rows == d.value_width() && l.out.outputs[0].w.cols == d.value_width() &&
         is_plain_row(in[2].w) && is_plain_row(in[3].w) && l.delta.slot_stride % 4 == 0 &&
         l.out.input.kind == InputKind::gated_rms && l.out.input.head_dim == kDim;
}

bool shape_may_run(const ModelSpec& spec, const LayerSpec& layer) {
  const GatedDeltaSpec* d = layer.gated_delta();
  const AttentionSpec* a = layer.attention();
  if (layer.moe || !layer.dense || layer.mixer_post_norm || layer.ffn_post_norm ||
      layer.layer_scale || (d == nullptr && a == nullptr))
    return false;
  const DenseFfnSpec& f = *layer.dense;
  if (f.activation != Activation::silu || f.scalar_gate || f.post_norm) return false;
  if (d != nullptr)
    return has_heads(*d) && fits_columns(spec.n_embd, d->value_width(), f.n_ff) &&
           fits_in(d->conv_channels() + d->value_width(), spec.n_embd);
  return has_query_heads(a->n_head, a->n_kv_head, a->head_dim_k, a->head_dim_v) &&
         has_gates(a->gate) && a->softcap == 0 && a->window == 0 && !a->v_norm &&
         !a->value_is_key && a->kv_source < 0 &&
         fits_columns(spec.n_embd, std::int64_t{a->n_head} * a->head_dim_v, f.n_ff);
}

bool fits(const RunLayer& l) {
  const FfnArgs& f = l.ffn;
  const DenseArgs& d = f.dense;
  const Output& out = l.out.outputs[0];
  return l.in.rows == 1 && l.in.input.kind == InputKind::rms_norm && f.moe.n_expert == 0 &&
         d.gate.data != nullptr && d.activation == Activation::silu && d.scalar_gate == nullptr &&
         d.post_norm == nullptr && f.norm != nullptr && f.post_norm == nullptr &&
         f.layer_scale == nullptr && f.eps == l.in.input.eps &&
         fits_columns(f.n_embd, out.w.cols, d.down.cols) && fits_mixer(l, f.n_embd) &&
         l.out.n_outputs == 1 && out.add && is_k_matrix(out.w, f.n_embd, out.w.cols) &&
         is_k_matrix(d.gate, d.down.cols, f.n_embd) && is_k_matrix(d.up, d.down.cols, f.n_embd) &&
         d.gate.type == d.up.type && is_k_matrix(d.down, f.n_embd, d.down.cols);
}

}  // namespace
}  // namespace dense_run

bool may_run_dense(const ModelSpec& spec, const LayerSpec& layer) {
  return dense_run::shape_may_run(spec, layer);
}
bool fits_dense_run(const RunLayer& layer) {
  return dense_run::fits(layer);
}

}  // namespace tessera::gpu
