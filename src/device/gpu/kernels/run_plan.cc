#include "device/gpu/kernels/run_plan.h"

#include <array>
#include <new>

#include "base/check.h"
#include "device/gpu/kernels/run.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {
namespace {

using namespace run;

std::int64_t address(const void* at) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at));
}

bool attends(const RunLayer& l) {
  return l.attention.n_head > 0;
}

// Layer::in_ends.
struct InEnds {
  std::array<int, 3> ends{};
};
InEnds in_ends(const RunLayer& l) {
  InEnds in;
  int end = 0;
  for (std::size_t i = 0; i < 3; ++i)
    in.ends[i] = end += i < 2 || attends(l) ? l.in.outputs[i].w.rows / kGroup : 0;
  return in;
}

// One block's plan of a layer, in the order in which the block needs the bytes.
class PlanWriter {
 public:
  PlanWriter(const RunLayer& layer, int block, Plan& plan)
      : layer_(layer), block_(block), plan_(plan) {}

  void write() {
    if (block_ < kWorkers)
      work();
    else
      help(block_ - kWorkers);
  }

 private:
  void work() {
    const FfnArgs& ffn = layer_.ffn;
    const ExpertShape& experts = ffn.moe.shape;
    norm_and_rows(layer_.in.input.weight);
    pairs_in();
    if (attends(layer_))
      spans();
    else
      state();
    sixteen(layer_.out.outputs[0].w, kAbsolute, 0, block_);
    norm_and_rows(ffn.norm, &ffn.moe.router_weight, 2 * block_, 2);
    if (block_ < kDenseTiles)
      for (const Matrix* w : {&ffn.dense.gate, &ffn.dense.up}) eight(*w, kAbsolute, 0, block_);
    open(2 * super_bytes(ffn.dense.down.type));
    supers(ffn.dense.down, kAbsolute, 0, block_ * 2, 2, 0);
    const std::uint32_t expert = kChosenExpert + static_cast<std::uint32_t>(block_ / kPairs);
    sixteen(experts.gate, expert, 0, block_ % kPairs);
    sixteen(experts.up, expert, experts.up_offset, block_ % kPairs);
    down();
  }
  void help(int helper) {
    const FfnArgs& ffn = layer_.ffn;
    if (attends(layer_)) {
      spans();
    } else {
      norm_and_rows(layer_.in.input.weight);
      const Matrix& w = layer_.in.outputs[helper < kHelpers / 2 ? 2 : 3].w;
      for (int row = 0; row < kGateRows; row += kRowsTogether) {
        open(kRowsTogether * kRow);
        rows(w, helper % (kHelpers / 2) * kGateRows + row, kRowsTogether, 0);
      }
    }
    if (helper != 0) return;
    const Matrix scalar{BlockType::F32, 1, kCols,
                        reinterpret_cast<const std::byte*>(ffn.dense.scalar_gate)};
    norm_and_rows(ffn.norm, &scalar, 0, 1);
  }
  void open(int bytes, When when = kAtOnce) {
    CHECK(entries_ + 1 < kMostEntries);
    entry_ = &plan_.entries[entries_++];
    *entry_ = {bytes, pieces_, 0, when};
  }
  // Which pages they are is known when the run begins.
  void spans() { open(page_bytes(kPageTokens), kSpans); }
  void add(std::int64_t from, std::uint32_t base, int to, int bytes) {
    CHECK(pieces_ < kMostPieces && to + bytes <= entry_->bytes);
    CHECK(from % 16 == 0 && to % 16 == 0 && bytes % 16 == 0, "bulk copies are of 16 bytes");
    plan_.pieces[pieces_++] = {from, to, base << 24 | static_cast<std::uint32_t>(bytes)};
    CHECK(++entry_->n <= kMostTogether);
  }

  // `n` super-blocks of a matrix from `first` on, plane by plane, to `to`. `offset`: of the matrix
  // from the base, where it has no address of its own.
  void supers(const Matrix& w, std::uint32_t base, std::int64_t offset, std::int64_t first, int n,
              int to) {
    const PlaneLayout at = plane_layout(w.type, w.rows, w.cols);
    const std::int64_t matrix = base == kAbsolute ? address(w.data) : offset;
    const auto plane = [&](std::int64_t plane_at, int bytes) {
      if (bytes == 0) return;
      add(matrix + plane_at + first * bytes, base, to, n * bytes);
      to += n * bytes;
    };
    const int tiles = kSuperCols / kTileCols;
    plane(at.quants, tiles * at.quant_bytes);
    plane(at.extra, tiles * at.extra_bytes);
    plane(at.scales, tiles * at.scale_bytes);
    plane(at.supers, at.super_bytes);
  }
  // The sixteen super-blocks of number `index`: two tiles of 2,048 columns or one of 4,096.
  void sixteen(const Matrix& w, std::uint32_t base, std::int64_t offset, int index) {
    for (int half = 0; half < 2; ++half) eight(w, base, offset, index * 2 + half);
  }
  void eight(const Matrix& w, std::uint32_t base, std::int64_t offset, int index) {
    open(8 * super_bytes(w.type), base == kAbsolute ? kAtOnce : kChosen);
    supers(w, base, offset, index * 8, 8, 0);
  }
  static constexpr int kRow = kCols * 4;
  void rows(const Matrix& w, int first, int n, int to) {
    add(address(w.data) + std::int64_t{first} * kRow, kAbsolute, to, n * kRow);
  }
  // A norm's weights, then `n` plain rows.
  void norm_and_rows(const float* norm, const Matrix* w = nullptr, int first = 0, int n = 0) {
    open((1 + n) * kRow);
    add(address(norm), kAbsolute, 0, kRow);
    if (n > 0) rows(*w, first, n, kRow);
  }

  void pairs_in() {
    const InEnds in = in_ends(layer_);
    for (int pair = block_; pair < in.ends[2]; pair += kWorkers) {
      const int m = pair < in.ends[0] ? 0 : pair < in.ends[1] ? 1 : 2;
      sixteen(layer_.in.outputs[m].w, kAbsolute, 0, m == 0 ? pair : pair - in.ends[m - 1]);
    }
  }

  void state() {
    const DeltaArgs& d = layer_.delta;
    const int channels = d.spec.conv_channels(), keys = d.spec.key_width();
    const int head = block_ / 4, column = block_ % 4 * kGroup, key_head = key_head_of(head);
    open(kStateEntry);
    add(address(d.state + kTaps * channels + (head * kDim + column) * kDim), kState, 0,
        kStateBytes);
    // Three parts of four rows of taps and three of the ring.
    for (int row = 0; row < 2 * kTaps - 1; ++row) {
      const bool taps = row < kTaps;
      const float* from = taps ? d.taps + row * channels : d.state;
      const std::uint32_t base = taps ? kAbsolute : kPast + static_cast<std::uint32_t>(row - kTaps);
      const int to = kTapsAt + row * kChannels * 4;
      add(address(from + key_head * kDim), base, to, kDim * 4);
      add(address(from + keys + key_head * kDim), base, to + kDim * 4, kDim * 4);
      add(address(from + 2 * keys + head * kDim + column), base, to + 2 * kDim * 4, kGroup * 4);
    }
    add(address(layer_.out.input.weight + column), kAbsolute, kNormAt, kGroup * 4);
    add(address(d.a + head / 4 * 4), kAbsolute, kDecayAt, 16);
    add(address(d.dt_bias + head / 4 * 4), kAbsolute, kDecayAt + 16, 16);
  }
  int key_head_of(int head) const {
    const GatedDeltaSpec& s = layer_.delta.spec;
    return s.grouped_values ? head / (s.n_value_head / s.n_key_head) : head % s.n_key_head;
  }

  // Tile by tile, two super-blocks each, four chosen experts' at a time.
  void down() {
    const ExpertShape& experts = layer_.ffn.moe.shape;
    const int each = 2 * super_bytes(experts.down.type);
    for (int e = 0; e < kUsed; ++e) {
      if (e % 4 == 0) open(4 * each, kChosen);
      supers(experts.down, kChosenExpert + static_cast<std::uint32_t>(e), experts.down_offset,
             block_ * 2, 2, e % 4 * each);
    }
  }

  const RunLayer& layer_;
  const int block_;
  Plan& plan_;
  Entry* entry_ = nullptr;
  int entries_ = 0, pieces_ = 0;
};

bool has_shape(const GatedDeltaSpec& d) {
  return d.n_value_head == kHeads && d.dim_k == kDim && d.dim_v == kDim && d.conv_width == kTaps &&
         d.n_key_head > 0 && kHeads % d.n_key_head == 0 && 2 * d.key_width() <= kValues;
}
bool has_shape(const AttentionSpec& a) {
  return a.n_head == kQueryHeads && a.n_kv_head == kKvHeads && a.head_dim_k == kHeadDim &&
         a.head_dim_v == kHeadDim && a.softcap == 0 && a.window == 0 && a.qk_norm && !a.v_norm &&
         !a.value_is_key && a.gate == OutputGate::sigmoid_in_query && a.kv_source < 0 &&
         a.rope.n_rot > 0 && a.rope.n_rot <= 2 * kMostTurns;
}
bool has_router(const RouterSpec& r) {
  return r.gating == Gating::softmax && !r.selection_bias && r.logit_softcap == 0 && !r.own_input;
}
bool is_super(const Matrix& w, int rows, int cols) {
  return (w.type == BlockType::Q4_K || w.type == BlockType::Q6_K) && w.rows == rows &&
         w.cols == cols;
}
bool is_plain_row(const Matrix& w, int rows) {
  return w.type == BlockType::F32 && w.rows == rows && w.cols == kCols;
}

bool fits_delta(const RunLayer& l) {
  const auto& in = l.in.outputs;
  return l.in.n_outputs == 4 && has_shape(l.delta.spec) && l.delta.slot_stride % 4 == 0 &&
         l.out.input.kind == InputKind::gated_rms && l.out.input.head_dim == kDim &&
         is_super(in[0].w, l.delta.spec.conv_channels(), kCols) &&
         is_super(in[1].w, kValues, kCols) && is_plain_row(in[2].w, kHeads) &&
         is_plain_row(in[3].w, kHeads);
}
bool fits_attention(const RunLayer& l) {
  const AttentionArgs& a = l.attention;
  const auto& in = l.in.outputs;
  return l.in.n_outputs == 3 && l.out.input.kind == InputKind::plain &&
         is_super(in[0].w, kKeysAt, kCols) && is_super(in[1].w, kKvHeads * kHeadDim, kCols) &&
         is_super(in[2].w, kKvHeads * kHeadDim, kCols) && a.n_head == kQueryHeads &&
         a.kv.kv_heads == kKvHeads && a.kv.head_dim_k == kHeadDim && a.kv.head_dim_v == kHeadDim &&
         a.kv.format == KvFormat::f16 && (address(a.pool) + a.layer_offset) % 16 == 0 &&
         a.page_stride % 16 == 0 && a.q_head_stride == 2 * kHeadDim && a.k != nullptr &&
         a.v != nullptr && a.q_norm != nullptr && a.k_norm != nullptr && !a.v_norm &&
         a.eps == l.in.input.eps && a.n_rot > 0 && a.n_rot <= 2 * kMostTurns && a.softcap == 0 &&
         a.window == 0 && a.gate == OutputGate::sigmoid_in_query;
}
bool fits_moe(const MoeArgs& m) {
  return m.n_expert == kExperts && m.n_used == kUsed && m.activation == Activation::silu &&
         has_router(m.router) && m.router_bias == nullptr && m.expert_scale == nullptr &&
         m.norm == nullptr && m.post_norm == nullptr && is_plain_row(m.router_weight, kExperts) &&
         is_super(m.shape.gate, kHidden, kCols) && is_super(m.shape.up, kHidden, kCols) &&
         is_super(m.shape.down, kCols, kHidden);
}
bool fits_dense(const DenseArgs& d) {
  return d.activation == Activation::silu && d.scalar_gate != nullptr && d.post_norm == nullptr &&
         is_super(d.gate, kHidden, kCols) && is_super(d.up, kHidden, kCols) &&
         is_super(d.down, kCols, kHidden);
}

}  // namespace

bool may_run(const ModelSpec& spec, const LayerSpec& layer) {
  const GatedDeltaSpec* d = layer.gated_delta();
  const AttentionSpec* a = layer.attention();
  if (spec.n_embd != kCols || !layer.moe || !layer.dense || layer.mixer_post_norm ||
      layer.ffn_post_norm || layer.layer_scale)
    return false;
  if (!(d != nullptr && has_shape(*d)) && !(a != nullptr && has_shape(*a))) return false;
  const MoeSpec& m = *layer.moe;
  const DenseFfnSpec& f = *layer.dense;
  return m.n_expert == kExperts && m.n_used == kUsed && m.n_ff == kHidden &&
         m.activation == Activation::silu && has_router(m.router) && !m.expert_scale &&
         !m.own_norm && !m.post_norm && f.n_ff == kHidden && f.activation == Activation::silu &&
         f.scalar_gate && !f.post_norm;
}

bool fits_run(const RunLayer& l) {
  const FfnArgs& f = l.ffn;
  const Output& out = l.out.outputs[0];
  return l.in.rows == 1 && l.in.input.kind == InputKind::rms_norm &&
         (attends(l) ? fits_attention(l) : fits_delta(l)) && l.out.n_outputs == 1 &&
         is_super(out.w, kCols, kValues) && out.add && f.eps == l.in.input.eps && fits_run(f);
}

bool fits_run(const FfnArgs& f) {
  return f.n_embd == kCols && f.norm != nullptr && f.post_norm == nullptr &&
         f.layer_scale == nullptr && fits_moe(f.moe) && fits_dense(f.dense);
}

bool goes_together(const FfnArgs& f) {
  return f.passed != nullptr && f.rows >= kLeastRoundedRows && f.rows <= kDecodeRows && fits_run(f);
}

bool leads_to(const FfnArgs& ffn, const ProjectArgs& in) {
  if (!goes_together(ffn) || in.rows != ffn.rows || in.input.kind != InputKind::rms_norm ||
      in.input.x != ffn.hidden || in.input.stride != kCols || in.input.row_ids != nullptr)
    return false;
  int pairs = 0;
  for (int i = 0; i < in.n_outputs; ++i) {
    const Output& output = in.outputs[static_cast<std::size_t>(i)];
    if (is_plain(output.w.type)) continue;
    if (!is_super(output.w, output.w.rows, kCols) || output.w.rows % kGroup != 0 || output.add)
      return false;
    pairs += output.w.rows / kGroup;
  }
  return pairs > 0 && pairs <= kMostNextPairs * kBlocks;
}

bool routes(const ProjectArgs& out, const FfnArgs& ffn) {
  const Input& in = out.input;
  const Output& to = out.outputs[0];
  const bool heads = in.kind == InputKind::gated_rms && in.gate_open && in.head_dim == kDim;
  return goes_together(ffn) && out.rows == ffn.rows && (heads || in.kind == InputKind::plain) &&
         in.row_ids == nullptr && out.n_outputs == 1 && is_super(to.w, kCols, kValues) && to.add &&
         to.out == ffn.hidden && to.stride == kCols;
}

ProjectArgs plain_outputs(const ProjectArgs& in) {
  ProjectArgs left = in;
  left.n_outputs = 0;
  for (int i = 0; i < in.n_outputs; ++i) {
    const Output& output = in.outputs[static_cast<std::size_t>(i)];
    if (is_plain(output.w.type)) left.outputs[static_cast<std::size_t>(left.n_outputs++)] = output;
  }
  return left;
}

std::size_t run_layer_bytes() {
  return sizeof(LayerPlans);
}

std::size_t run_passed_bytes(std::int64_t context) {
  const std::int64_t spans = most_spans(static_cast<int>(context));
  return static_cast<std::size_t>(passed_layout().bytes + spans * kSpanBytes);
}

namespace {

void describe_delta(const RunLayer& l, Layer& to) {
  const GatedDeltaSpec& d = l.delta.spec;
  to.channels = d.conv_channels();
  to.key_heads = d.n_key_head;
  to.grouped = d.grouped_values ? 1 : 0;
  to.state = l.delta.state;
  to.slot_stride = l.delta.slot_stride;
  to.head_eps = l.out.input.eps;
}
void describe_attention(const AttentionArgs& a, Layer& to) {
  to.attends = 1;
  to.turns = a.n_rot / 2;
  to.q_norm = a.q_norm;
  to.k_norm = a.k_norm;
  to.cos = a.cos;
  to.sin = a.sin;
  to.pool = a.pool + a.layer_offset;
  to.page_stride = a.page_stride;
  to.page_table = a.page_table;
  to.table_stride = a.table_stride;
  to.scale = a.scale;
}
void describe_ffn(const FfnArgs& f, Layer& to) {
  const MoeArgs& m = f.moe;
  to.weight_scale = m.router.weight_scale;
  to.normalize = m.router.normalize ? 1 : 0;
  to.table = m.table;
  to.ids = m.ids;
  to.weights = m.weights;
  to.gate = m.shape.gate.type;
  to.up = m.shape.up.type;
  to.down = m.shape.down.type;
  to.dense_gate = f.dense.gate.type;
  to.dense_up = f.dense.up.type;
  to.dense_down = f.dense.down.type;
  to.eps = f.eps;
}

}  // namespace

void write_run_layer(const RunLayer& l, std::byte* host) {
  auto* to = new (host) LayerPlans{};
  const InEnds in = in_ends(l);
  to->layer.in_is_q4 = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    to->layer.in_ends[i] = in.ends[i];
    to->layer.in[i] = l.in.outputs[i].w.type;
    if (i < 2 || attends(l)) to->layer.in_is_q4 &= to->layer.in[i] == BlockType::Q4_K;
  }
  to->layer.out = l.out.outputs[0].w.type;
  if (attends(l))
    describe_attention(l.attention, to->layer);
  else
    describe_delta(l, to->layer);
  describe_ffn(l.ffn, to->layer);
  for (int block = 0; block < kBlocks; ++block) PlanWriter(l, block, to->plans[block]).write();
}

}  // namespace tessera::gpu
