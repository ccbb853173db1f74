// The pure functions of kernels.h and choose.h: sizes, and what the kernels can compute. No
// driver's header here: the planner counts with them too.
#include "device/gpu/kernels/sizes.h"

#include <algorithm>

#include "device/gpu/kernels/choose.h"

namespace tessera::gpu {

std::int64_t kv_head_bytes(KvFormat format, int head_dim) {
  const std::int64_t n = std::int64_t{head_dim} * kPageTokens;
  switch (format) {
    case KvFormat::f32:
      return n * 4;
    case KvFormat::f16:
      return n * 2;
    case KvFormat::q8_0:
      break;
  }
  return n + n / 32 * 2;
}

std::int64_t kv_layer_page_bytes(const KvGeometry& kv) {
  const std::int64_t bytes = kv.kv_heads * (kv_head_bytes(kv.format, kv.head_dim_k) +
                                            kv_head_bytes(kv.format, kv.head_dim_v));
  return (bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
}

namespace {

std::size_t attention_floats(const AttentionArgs& args, int rows) {
  const std::size_t heads = static_cast<std::size_t>(rows) * static_cast<std::size_t>(args.n_head);
  const auto spans = static_cast<std::size_t>(attention_spans(rows, args.max_context));
  return heads * (static_cast<std::size_t>(args.kv.head_dim_k) +
                  spans * static_cast<std::size_t>(args.kv.head_dim_v + 2));
}

}  // namespace

// Few rows may take more than many: only their contexts are cut into spans.
std::size_t attention_workspace(const AttentionArgs& args) {
  return sizeof(float) * std::max(attention_floats(args, args.step.rows),
                                  attention_floats(args, std::min(args.step.rows, kDecodeRows)));
}

std::int64_t delta_state_floats(const GatedDeltaSpec& spec) {
  return std::int64_t{spec.conv_width} * spec.conv_channels() +
         std::int64_t{spec.n_value_head} * spec.dim_k * spec.dim_v;
}

std::size_t delta_convolution_bytes(const GatedDeltaSpec& spec, int rows) {
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(rows) *
                            static_cast<std::size_t>(spec.conv_channels());
  return (bytes + 255) / 256 * 256;
}

bool opens_gate(const GatedDeltaSpec& spec, const StepRows& step) {
  return !goes_in_chunks(spec, step);
}

std::size_t delta_workspace(const GatedDeltaSpec& spec, int rows) {
  const std::size_t convolution = delta_convolution_bytes(spec, rows);
  if (!has_delta_chunks(spec)) return convolution;
  // Of a row: W, U and P of each value head, Q and K of each key head, in halves; two decays.
  const auto dim = static_cast<std::size_t>(spec.dim_k);
  const std::size_t row = (2 * (2 * dim + kDeltaChunk) + 2 * sizeof(float)) *
                              static_cast<std::size_t>(spec.n_value_head) +
                          2 * (2 * dim) * static_cast<std::size_t>(spec.n_key_head);
  const std::size_t chunks = row * static_cast<std::size_t>(rows);
  // Sequences that do not go in chunks need their convolved rows.
  return std::max(convolution, delta_chunks_at(spec, rows) + chunks);
}

ExpertShape expert_shape(BlockType gate, BlockType up, BlockType down, int n_embd, int n_ff) {
  ExpertShape shape;
  shape.gate = {gate, n_ff, n_embd, nullptr};
  shape.up = {up, n_ff, n_embd, nullptr};
  shape.down = {down, n_embd, n_ff, nullptr};
  shape.up_offset = plane_layout(gate, n_ff, n_embd).bytes;
  shape.down_offset = shape.up_offset + plane_layout(up, n_ff, n_embd).bytes;
  shape.bytes = shape.down_offset + plane_layout(down, n_embd, n_ff).bytes;
  return shape;
}

namespace {

std::int64_t padded(int cols) {
  return (cols + kTileCols - 1) / kTileCols * kTileCols;
}

}  // namespace

FfnShape ffn_shape(const FfnArgs& args) {
  FfnShape shape;
  shape.slots = args.moe.n_expert > 0 ? args.moe.n_used : 0;
  shape.expert_pad = args.moe.n_expert > 0 ? static_cast<int>(padded(args.moe.n_ff)) : 0;
  shape.dense_pad =
      args.dense.gate.data != nullptr ? static_cast<int>(padded(args.dense.gate.rows)) : 0;
  shape.h_stride = shape.slots * shape.expert_pad + shape.dense_pad;
  return shape;
}

std::size_t half_rows_bytes(std::size_t rows, int cols) {
  const std::size_t tiles = (rows + kHalfTileRows - 1) / kHalfTileRows;
  return tiles * kHalfTileRows * static_cast<std::size_t>(padded(cols)) * 2;
}

std::size_t gemm_room(int rows, int weight_rows, int cols) {
  if (rows < kGemmRows) return 0;
  const auto tiles =
      std::max<std::size_t>(2, (static_cast<std::size_t>(weight_rows) + kGemmTile - 1) / kGemmTile);
  return std::min(kMostGemmRoom, tiles * kGemmTile * static_cast<std::size_t>(padded(cols)) * 2);
}

TilesLayout tiles_layout(const FfnArgs& args) {
  const FfnShape shape = ffn_shape(args);
  const auto rows = static_cast<std::size_t>(args.rows);
  const std::size_t pairs = rows * static_cast<std::size_t>(shape.slots);
  const auto experts = static_cast<std::size_t>(args.moe.n_expert);
  TilesLayout at{};
  std::size_t bytes =
      sizeof(float) * ((rows + 63) / 64 * 64 + rows * static_cast<std::size_t>(shape.h_stride));
  const auto place = [&bytes](std::size_t& offset, std::size_t size) {
    offset = (bytes + 255) / 256 * 256;
    bytes = offset + size;
  };
  place(at.x, half_rows_bytes(rows, args.n_embd));
  place(at.x_rest, args.rows >= kGemmRows && experts > 0 ? half_rows_bytes(rows, args.n_embd) : 0);
  place(at.h, half_rows_bytes(pairs, shape.expert_pad));
  place(at.dense_h, half_rows_bytes(rows, shape.dense_pad));
  place(at.list, pairs * 4);
  place(at.first, (experts + 1) * 4);
  place(at.tiles, (pairs / kFewTokens + experts) * 12);
  place(at.n_tiles, 4);
  // Of the router in two parts, or of a matrix of the dense branch.
  place(at.weights, std::max({gemm_room(args.rows, 2 * args.moe.n_expert, args.n_embd),
                              gemm_room(args.rows, 2 * shape.dense_pad, args.n_embd),
                              gemm_room(args.rows, args.n_embd, shape.dense_pad)}));
  at.bytes = bytes;
  return at;
}

std::size_t ffn_workspace(const FfnArgs& args) {
  return tiles_layout(args).bytes;
}

// The rows as halves and what halves leave of them, then weights.
std::size_t project_workspace(int rows, int cols, int weight_rows) {
  const std::size_t tokens = half_rows_bytes(static_cast<std::size_t>(rows), cols);
  return (rows < kGemmRows ? tokens : 2 * tokens) + gemm_room(rows, weight_rows, cols);
}

std::size_t choose_workspace(int rows) {
  return static_cast<std::size_t>(rows) * kChoiceWorkBytes;
}

const char* unsupported(const ModelSpec& spec, const LayerSpec& layer, KvFormat format) {
  if (spec.n_embd % 32 != 0) return "rows of the residual are not a multiple of 32";
  if (const AttentionSpec* a = layer.attention()) {
    if (a->head_dim_k > 512 || a->head_dim_v > 512) return "attention heads wider than 512";
    const int unit = format == KvFormat::q8_0 ? 32 : 16;
    if (a->head_dim_k % unit != 0 || a->head_dim_v % unit != 0)
      return "attention head dimensions that are not multiples of 16 (q8_0 pages: 32)";
  }
  if (const GatedDeltaSpec* d = layer.gated_delta()) {
    if (d->dim_k > 256 || d->dim_k % 4 != 0) return "delta-net key dimensions above 256";
    if (d->dim_v % 4 != 0) return "delta-net value dimensions that are not multiples of 4";
  }
  if (layer.moe && layer.moe->n_expert > kMaxExperts) return "more than 512 experts in a layer";
  if (layer.moe && layer.moe->n_used > kMaxUsed) return "more than 32 experts a token";
  return nullptr;
}

}  // namespace tessera::gpu
