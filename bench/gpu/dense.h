// A dense model of the shape of qwen35 full (27B), or another one, for the benchmark
// (dense_bench.cu) and for the test of its runs (dense_run_test.cu).
#pragma once

#include "bench.h"
#include "device/gpu/kernels/choose.h"
#include "device/gpu/kernels/dense_run.h"
#include "device/gpu/kernels/ffn.cuh"

namespace tessera::gpu::bench {

struct DenseShape {
  int embd = 5120, hidden = 17408, vocab = 248320;
  int heads = 24, kv = 4, dim = 256, turned = 64;  // attention's
  bool gated = true;                               // its heads
  GatedDeltaSpec delta{16, 48, 128, 128, 4, false};
  BlockType gates = BlockType::F32;   // of alpha and beta
  static constexpr int kPages = 257;  // of a layer
  int query() const { return heads * dim * (gated ? 2 : 1); }
  int wide() const { return std::max(query(), int(delta.conv_channels())); }
  int side() const { return int(delta.value_width()); }
  std::size_t page() const {
    return std::size_t(kv_layer_page_bytes({kv, dim, dim, KvFormat::f16}));
  }
};

struct DenseLayer {
  bool delta, more;  // more: the sensitive matrices are Q6_K
  Matrix in[4], out, gate, up, down;
  float* state;
  std::byte* pool;
};

struct DenseModel {
  // `sequences`: that have a state.
  DenseModel(const DenseShape& of, int n, int sequences = 8) : shape(of) {
    norm = floats(65536, 0.05f, 1);
    decay = floats(64, 0.0f, 1);
    const std::vector<float> slow(64, -0.1f);
    GPU_OK(cudaMemcpy(decay, slow.data(), 256, cudaMemcpyHostToDevice));
    for (int i = 0; i < n; ++i) {
      const bool more = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
      layers.push_back(make(i % 4 != 3, more, sequences));
    }
    GPU_OK(cudaDeviceSynchronize());
  }
  DenseLayer make(bool delta, bool more, int sequences) {
    using enum BlockType;
    DenseLayer l{};
    l.delta = delta, l.more = more;
    const BlockType some = more ? Q6_K : Q4_K;
    const int embd = shape.embd, key = shape.kv * shape.dim;
    if (delta) {
      const GatedDeltaSpec& d = shape.delta;
      l.in[0] = source.make(some, int(d.conv_channels()), embd);
      l.in[1] = source.make(Q4_K, int(d.value_width()), embd);
      l.in[2] = source.make(shape.gates, d.n_value_head, embd);
      l.in[3] = source.make(shape.gates, d.n_value_head, embd);
      l.state = floats(state_floats() * std::size_t(sequences), 0.01f, 2);
    } else {
      l.in[0] = source.make(Q4_K, shape.query(), embd);
      l.in[1] = source.make(Q4_K, key, embd);
      l.in[2] = source.make(some, key, embd);
      GPU_OK(cudaMalloc(&l.pool, DenseShape::kPages * shape.page()));
      GPU_OK(cudaMemset(l.pool, 0x2c, DenseShape::kPages * shape.page()));
    }
    l.out = source.make(Q4_K, embd, shape.side());
    l.gate = source.make(Q4_K, shape.hidden, embd);
    l.up = source.make(Q4_K, shape.hidden, embd);
    l.down = source.make(some, embd, shape.hidden);
    return l;
  }
  std::size_t state_floats() const { return std::size_t(delta_state_floats(shape.delta)); }

  DenseShape shape;
  Source source;
  float *norm, *decay;
  std::vector<DenseLayer> layers;
};

struct DenseBuffers {
  DenseBuffers(const DenseShape& of, int rows) {
    const std::size_t r = std::size_t(rows);
    hidden = floats(r * std::size_t(of.embd), 1.0f, 4);
    wide = floats(r * std::size_t(of.wide()), 1.0f, 5);
    side = floats(r * std::size_t(of.side()), 1.0f, 6);
    side2 = floats(r * std::size_t(of.side()), 1.0f, 7);
    mixed = floats(r * std::size_t(of.side()), 1.0f, 8);
    heads = floats(r * 2 * std::size_t(of.delta.n_value_head), 1.0f, 9);
    cosines = floats(r * 64, 1.0f, 10);
  }
  float *hidden, *wide, *side, *side2, *mixed, *heads, *cosines;
};

// --- What a layer calls ---

inline Input dense_normed(const DenseModel& m, const DenseBuffers& b) {
  return {.kind = InputKind::rms_norm,
          .x = b.hidden,
          .stride = m.shape.embd,
          .cols = m.shape.embd,
          .weight = m.norm,
          .eps = 1e-6f};
}
inline void delta_calls(const Launch& launch, const DenseModel& m, const DenseLayer& l,
                        const DenseBuffers& b, const StepRows& step, RunLayer& to) {
  const GatedDeltaSpec& d = m.shape.delta;
  const int side = m.shape.side(), heads = d.n_value_head;
  to.in.n_outputs = 4;
  to.in.outputs = {{{l.in[0], b.wide, d.conv_channels(), false},
                    {l.in[1], b.side, side, false},
                    {l.in[2], b.heads, heads, false},
                    {l.in[3], b.heads + step.rows * heads, heads, false}}};
  to.delta = {.step = step,
              .spec = d,
              .qkv = b.wide,
              .alpha = b.heads,
              .beta_logits = b.heads + step.rows * heads,
              .taps = m.norm,
              .dt_bias = m.norm,
              .a = m.decay,
              .state = l.state,
              .slot_stride = std::int64_t(m.state_floats()),
              .out = b.mixed,
              .gate = b.side,
              .norm = m.norm,
              .eps = 1e-6f};
  to.out.input = {.kind = InputKind::gated_rms,
                  .x = b.mixed,
                  .stride = side,
                  .cols = side,
                  .weight = m.norm,
                  .eps = 1e-6f,
                  .gate = b.side,
                  .gate_stride = side,
                  .gate_open = opens_gate(d, step),
                  .head_dim = 128,
                  .rounded = leaves_rounded(launch, d, step)};
}
inline void attention_calls(const DenseModel& m, const DenseLayer& l, const DenseBuffers& b,
                            const Step& s, RunLayer& to) {
  const DenseShape& of = m.shape;
  const int key = of.kv * of.dim, query = of.heads * of.dim;
  to.in.n_outputs = 3;
  to.in.outputs = {{{l.in[0], b.wide, of.query(), false},
                    {l.in[1], b.side, key, false},
                    {l.in[2], b.side2, key, false}}};
  to.attention = {.step = s.test.step,
                  .kv = {of.kv, of.dim, of.dim, KvFormat::f16},
                  .n_head = of.heads,
                  .q = b.wide,
                  .q_stride = of.query(),
                  .q_head_stride = of.query() / of.heads,
                  .k = b.side,
                  .v = b.side2,
                  .k_stride = key,
                  .v_stride = key,
                  .q_norm = m.norm,
                  .k_norm = m.norm,
                  .eps = 1e-6f,
                  .n_rot = of.turned,
                  .cos = b.cosines,
                  .sin = b.cosines,
                  .scale = 0.06f,
                  .gate = of.gated ? OutputGate::sigmoid_in_query : OutputGate::none,
                  .pool = l.pool,
                  .page_stride = std::int64_t(of.page()),
                  .page_table = s.table.data(),
                  .table_stride = s.pages_a_row,
                  .max_context = s.context,
                  .out = b.mixed,
                  .out_stride = query};
  to.out.input = {.kind = InputKind::plain,
                  .x = b.mixed,
                  .stride = query,
                  .cols = query,
                  .rounded = attention_leaves_rounded(to.attention)};
}
inline RunLayer dense_calls(const Launch& launch, const DenseModel& m, const DenseLayer& l,
                            const DenseBuffers& b, const Step& s) {
  const int rows = s.test.step.rows, embd = m.shape.embd;
  RunLayer to{.in = {.input = dense_normed(m, b), .rows = rows}};
  if (l.delta)
    delta_calls(launch, m, l, b, s.test.step, to);
  else
    attention_calls(m, l, b, s, to);
  to.out.rows = rows, to.out.n_outputs = 1;
  to.out.outputs = {{{l.out, b.hidden, embd, true}}};
  to.ffn = {.rows = rows, .n_embd = embd, .eps = 1e-6f, .hidden = b.hidden, .norm = m.norm};
  to.ffn.dense = {.gate = l.gate, .up = l.up, .down = l.down};
  return to;
}
inline void mix(const Launch& launch, const RunLayer& calls) {
  GPU_OK(calls.attention.n_head > 0 ? attention(launch, calls.attention)
                                    : gated_delta(launch, calls.delta));
}
inline void dense_layer(const Launch& launch, const RunLayer& calls) {
  GPU_OK(project(launch, calls.in));
  mix(launch, calls);
  GPU_OK(project(launch, calls.out));
  GPU_OK(ffn_all(launch, calls.ffn));
}

// All layers as one run, of contexts up to `context` tokens.
class DenseRuns {
 public:
  DenseRuns(const std::vector<RunLayer>& layers, int context)
      : layers_(layers),
        host_(dense_runs_bytes(int(layers.size()))),
        passed_(dense_passed_bytes(context, query_columns(layers))),
        log_(dense_log_bytes(int(layers.size())) / sizeof(float)) {
    passed_.zero();
    log_.zero();
    places_ = write_dense_runs(layers, host_.data());
    plans_ = DeviceArray<std::byte>(host_);
    GPU_OK(cudaDeviceSynchronize());
  }
  // The same layers in another step, whose page table is another one.
  void take(const std::vector<RunLayer>& layers) {
    layers_ = layers;
    write_dense_runs(layers, host_.data());
    GPU_OK(cudaMemcpy(plans_.data(), host_.data(), host_.size(), cudaMemcpyHostToDevice));
  }
  bool fits() const {
    return std::all_of(places_.begin(), places_.end(), [](int place) { return place >= 0; });
  }
  void settle(const Launch& launch) {
    GPU_OK(settle_dense(launch, plans_.data(), int(layers_.size()), log_.data(), 0));
  }
  void run(const Launch& launch, bool logs) {
    const RunLayer& l = layers_[0];
    const StepRows& step = l.attention.n_head > 0 ? l.attention.step : l.delta.step;
    GPU_OK(run_dense(launch, {.plans = plans_.data(),
                              .places = int(layers_.size()),
                              .n_layers = int(layers_.size()),
                              .hidden = l.ffn.hidden,
                              .passed = passed_.data(),
                              .sequences = step.sequences,
                              .log = logs ? log_.data() : nullptr}));
  }
  std::size_t layers() const { return layers_.size(); }
  std::byte* passed() { return passed_.data(); }

 private:
  static std::int64_t query_columns(const std::vector<RunLayer>& layers) {
    std::int64_t most = 0;
    for (const RunLayer& l : layers)
      most = std::max(most, std::int64_t{l.attention.n_head} * l.attention.kv.head_dim_v);
    return most;
  }
  std::vector<RunLayer> layers_;
  std::vector<std::byte> host_;
  DeviceArray<std::byte> plans_, passed_;
  DeviceArray<float> log_;
  std::vector<int> places_;
};

}  // namespace tessera::gpu::bench
