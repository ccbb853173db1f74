// A model of the shape of qwen35moe full, Q4_K_M, with what a step of it calls: the kernels'
// arguments for each block of a layer, whole layers by launches, and runs of them. Weights are
// random; every layer has its own, so that nothing is read from a cache that a real token would not
// find there.
#pragma once

#include "bench.h"
#include "device/gpu/kernels/choose.h"
#include "device/gpu/kernels/ffn.cuh"
#include "device/gpu/kernels/run.h"

namespace tessera::gpu::bench {

inline constexpr int kEmbd = 2048, kExperts = 256, kUsed = 8, kFf = 512, kVocab = 248320;
inline constexpr int kHeads = 16, kKv = 2, kDim = 256, kRot = 64;
inline constexpr int kMaxRows = 4096;
inline const GatedDeltaSpec kDelta{16, 32, 128, 128, 4, false};

struct Layer {
  bool delta;
  Matrix in[4], out, router, shared[3];
  std::byte* experts;
  const std::byte** table;
  ExpertShape shape;
  float* state;
  std::byte* pool;
};

struct Model {
  explicit Model(int n) {
    norm = floats(65536, 0.05f, 1);
    decay = floats(64, 0.0f, 1);
    const std::vector<float> slow(64, -0.1f);
    GPU_OK(cudaMemcpy(decay, slow.data(), 256, cudaMemcpyHostToDevice));
    for (int i = 0; i < n; ++i) layers.push_back(make(i));
    head = source.make(BlockType::Q6_K, kVocab, kEmbd);
    GPU_OK(cudaDeviceSynchronize());
  }
  Layer make(int i) {
    Layer l{};
    l.delta = i % 4 != 3;
    const bool more = i < 5 || i >= 35 || (i - 5) % 3 == 2;
    const BlockType some = more ? BlockType::Q6_K : BlockType::Q4_K;
    if (l.delta) {
      l.in[0] = source.make(some, kDelta.conv_channels(), kEmbd);
      l.in[1] = source.make(BlockType::Q4_K, kDelta.value_width(), kEmbd);
      l.in[2] = source.make(BlockType::F32, 32, kEmbd);
      l.in[3] = source.make(BlockType::F32, 32, kEmbd);
      l.out = source.make(BlockType::Q4_K, kEmbd, kDelta.value_width());
      l.state = floats(std::size_t(delta_state_floats(kDelta)) * 8, 0.01f, 2);
    } else {
      l.in[0] = source.make(BlockType::Q4_K, kHeads * kDim * 2, kEmbd);
      l.in[1] = source.make(BlockType::Q4_K, kKv * kDim, kEmbd);
      l.in[2] = source.make(some, kKv * kDim, kEmbd);
      l.out = source.make(BlockType::Q4_K, kEmbd, kHeads * kDim);
      const std::size_t pages = 32768 / 64 + 65;
      GPU_OK(cudaMalloc(&l.pool, pages * page()));
      float* noise = floats(pages * page() / 4, 0.01f, 3);
      GPU_OK(cudaMemset(l.pool, 0x2c, pages * page()));
      (void)cudaFree(noise);
    }
    l.router = source.make(BlockType::F32, kExperts, kEmbd);
    l.shape = expert_shape(BlockType::Q4_K, BlockType::Q4_K, some, kEmbd, kFf);
    GPU_OK(cudaMalloc(&l.experts, std::size_t(l.shape.bytes) * kExperts));
    std::vector<const std::byte*> pointers;
    for (int e = 0; e < kExperts; ++e) {
      std::byte* at = l.experts + e * l.shape.bytes;
      source.fill(at, l.shape.gate.type, kFf, kEmbd);
      source.fill(at + l.shape.up_offset, l.shape.up.type, kFf, kEmbd);
      source.fill(at + l.shape.down_offset, l.shape.down.type, kEmbd, kFf);
      pointers.push_back(at);
    }
    GPU_OK(cudaMalloc(&l.table, sizeof(void*) * kExperts));
    GPU_OK(cudaMemcpy(l.table, pointers.data(), sizeof(void*) * kExperts, cudaMemcpyHostToDevice));
    l.shared[0] = source.make(BlockType::Q4_K, kFf, kEmbd);
    l.shared[1] = source.make(BlockType::Q4_K, kFf, kEmbd);
    l.shared[2] = source.make(some, kEmbd, kFf);
    return l;
  }
  static std::size_t page() {
    return std::size_t(kv_layer_page_bytes({kKv, kDim, kDim, KvFormat::f16}));
  }

  Source source;
  float* norm;
  float* decay;
  std::vector<Layer> layers;
  Matrix head;
};

// Everything a step writes.
struct Buffers {
  Buffers() {
    const std::size_t r = kMaxRows;
    hidden = floats(r * kEmbd, 1.0f, 4);
    start = floats(kStartFloats, 1.0f, 4);
    wide = floats(r * 8192, 1.0f, 5);
    side = floats(r * 4096, 1.0f, 6);
    side2 = floats(r * 4096, 1.0f, 7);
    mixed = floats(r * 4096, 1.0f, 8);
    heads = floats(r * 64, 1.0f, 9);
    cosines = floats(r * 64, 1.0f, 10);
    logits = floats(std::size_t(8) * kVocab, 1.0f, 11);
    dense_out = floats(r * kEmbd, 1.0f, 12);
    pair_out = floats(r * kUsed * kEmbd, 1.0f, 13);
    router = floats(r * kExperts, 1.0f, 14);
    GPU_OK(cudaMalloc(&ids, r * kUsed * 4));
    weights = floats(r * kUsed, 1.0f, 15);
    GPU_OK(cudaMalloc(&choices, 8 * sizeof(RowChoice)));
    GPU_OK(cudaMemset(choices, 0, 8 * sizeof(RowChoice)));  // the largest logit
    GPU_OK(cudaMalloc(&chosen, 8 * sizeof(ChosenRow)));
  }
  // The first rows as they were: what a token chooses depends on them.
  static constexpr std::size_t kStartFloats = std::size_t(kDecodeRows) * kEmbd;
  float *hidden, *start, *wide, *side, *side2, *mixed, *heads, *cosines, *logits, *dense_out,
      *pair_out, *router, *weights;
  std::int32_t* ids;
  RowChoice* choices;
  ChosenRow* chosen;
};

class Mixture {
 public:
  Mixture(int layers, bool chained) : model_(layers), runner_(std::size_t(1) << 30) {
    runner_.launch.chained = chained;
  }

  ProjectArgs in_args(const Layer& l, int rows) {
    ProjectArgs p{.input = {.kind = InputKind::rms_norm,
                            .x = b_.hidden,
                            .stride = kEmbd,
                            .cols = kEmbd,
                            .weight = model_.norm,
                            .eps = 1e-6f},
                  .rows = rows};
    if (l.delta) {
      p.n_outputs = 4;
      p.outputs = {{{l.in[0], b_.wide, 8192, false},
                    {l.in[1], b_.side, 4096, false},
                    {l.in[2], b_.heads, 32, false},
                    {l.in[3], b_.heads + rows * 32, 32, false}}};
    } else {
      p.n_outputs = 3;
      p.outputs = {{{l.in[0], b_.wide, 8192, false},
                    {l.in[1], b_.side, 512, false},
                    {l.in[2], b_.side2, 512, false}}};
    }
    return p;
  }
  void mixer_in(const Layer& l, int rows) { GPU_OK(project(runner_.launch, in_args(l, rows))); }
  GateProducts gates(const Layer& l, const StepRows& step) {
    return {in_args(l, step.rows).input, l.in[2], l.in[3]};
  }
  bool makes_gates(const Layer& l, const StepRows& step) {
    return gpu::makes_gates(runner_.launch, {.step = step, .spec = kDelta}, gates(l, step));
  }
  DeltaArgs delta_args(const Layer& l, const StepRows& step, bool makes = false) {
    return {.step = step,
            .spec = kDelta,
            .qkv = b_.wide,
            .alpha = b_.heads,
            .beta_logits = b_.heads + step.rows * 32,
            .taps = model_.norm,
            .dt_bias = model_.norm,
            .a = model_.decay,
            .state = l.state,
            .slot_stride = delta_state_floats(kDelta),
            .out = b_.mixed,
            .gate = b_.side,
            .norm = model_.norm,
            .eps = 1e-6f,
            .gates = makes ? gates(l, step) : GateProducts{}};
  }
  // `led`: the quantised projections in are made (leads_to()).
  void mix(const Layer& l, const Step& s, bool led = false) {
    const StepRows& step = s.test.step;
    if (l.delta)
      GPU_OK(gated_delta(runner_.launch, delta_args(l, step, led && makes_gates(l, step))));
    else
      GPU_OK(attention(runner_.launch, attention_args(l, s)));
  }
  AttentionArgs attention_args(const Layer& l, const Step& s) {
    return {.step = s.test.step,
            .kv = {kKv, kDim, kDim, KvFormat::f16},
            .n_head = kHeads,
            .q = b_.wide,
            .q_stride = 8192,
            .q_head_stride = 512,
            .k = b_.side,
            .v = b_.side2,
            .k_stride = 512,
            .v_stride = 512,
            .q_norm = model_.norm,
            .k_norm = model_.norm,
            .eps = 1e-6f,
            .n_rot = kRot,
            .cos = b_.cosines,
            .sin = b_.cosines,
            .scale = 0.06f,
            .gate = OutputGate::sigmoid_in_query,
            .pool = l.pool,
            .page_stride = std::int64_t(Model::page()),
            .page_table = s.table.data(),
            .table_stride = s.pages_a_row,
            .max_context = s.context,
            .out = b_.mixed,
            .out_stride = 4096};
  }
  ProjectArgs out_args(const Layer& l, int rows) {
    Input in{.kind = InputKind::plain, .x = b_.mixed, .stride = 4096, .cols = 4096};
    if (l.delta) {
      in.kind = InputKind::gated_rms;
      in.weight = model_.norm, in.eps = 1e-6f, in.gate = b_.side, in.gate_stride = 4096,
      in.gate_open = rows <= 8, in.head_dim = 128;
      in.rounded =
          rows <= 8 && leaves_rounded(runner_.launch, kDelta,
                                      {.rows = rows, .n_sequences = rows, .max_sequence_rows = 1});
    } else {
      in.rounded = attention_leaves_rounded(
          {.step = {.rows = rows}, .kv = {kKv, kDim, kDim, KvFormat::f16}, .n_head = kHeads});
    }
    return {
        .input = in, .rows = rows, .n_outputs = 1, .outputs = {{{l.out, b_.hidden, kEmbd, true}}}};
  }
  void mixer_out(const Layer& l, int rows) {
    const ProjectArgs out = out_args(l, rows);
    const FfnArgs ffn = ffn_args(l, rows);
    GPU_OK(ffn.routed ? project_and_route(runner_.launch, out, ffn) : project(runner_.launch, out));
  }
  FfnArgs ffn_args(const Layer& l, int rows) {
    FfnArgs f{
        .rows = rows, .n_embd = kEmbd, .eps = 1e-6f, .hidden = b_.hidden, .norm = model_.norm};
    f.dense = {
        .gate = l.shared[0], .up = l.shared[1], .down = l.shared[2], .scalar_gate = model_.norm};
    f.moe = {.n_expert = kExperts,
             .n_used = kUsed,
             .n_ff = kFf,
             .router_weight = l.router,
             .shape = l.shape,
             .table = l.table,
             .ids = b_.ids,
             .weights = b_.weights,
             .logits = b_.router};
    f.dense_out = b_.dense_out, f.pair_out = b_.pair_out;
    if (together_) f.passed = passed_.data();
    f.routed = routes_ && routes(out_args(l, rows), f);
    return f;
  }
  void ffn(const Layer& l, int rows) { GPU_OK(ffn_all(runner_.launch, ffn_args(l, rows))); }
  void head(int rows) {
    GPU_OK(project(runner_.launch, {.input = {.kind = InputKind::rms_norm,
                                              .x = b_.hidden,
                                              .stride = kEmbd,
                                              .cols = kEmbd,
                                              .weight = model_.norm,
                                              .eps = 1e-6f},
                                    .rows = rows,
                                    .n_outputs = 1,
                                    .outputs = {{{model_.head, b_.logits, kVocab, false}}}}));
    GPU_OK(choose(runner_.launch, {.logits = b_.logits,
                                   .rows = rows,
                                   .n_vocab = kVocab,
                                   .n_token = kVocab,
                                   .choices = b_.choices,
                                   .out = b_.chosen}));
  }
  void layer(const Layer& l, const Step& s) {
    mixer_in(l, s.test.step.rows);
    mix(l, s);
    mixer_out(l, s.test.step.rows);
    ffn(l, s.test.step.rows);
  }
  // The projections that a kernel with the quantised ones leaves, where the mixer does not make
  // them.
  void project_left(const Layer& l, const ProjectArgs& in, const StepRows& step) {
    const ProjectArgs left = plain_outputs(in);
    if (left.n_outputs > 0 && !makes_gates(l, step))  // no other is plain
      GPU_OK(project(runner_.launch, left));
  }
  // The FFN with the projections of the layer behind.
  void ffn_and_next(const Layer& l, const Layer& next, const Step& s) {
    const ProjectArgs in = in_args(next, s.test.step.rows);
    GPU_OK(gpu::ffn_and_next(runner_.launch, ffn_args(l, in.rows), in));
    project_left(next, in, s.test.step);
  }
  void first_in(const Layer& l, const Step& s) {
    const ProjectArgs in = in_args(l, s.test.step.rows);
    GPU_OK(project_first(runner_.launch, ffn_args(l, in.rows), in));
    project_left(l, in, s.test.step);
  }
  void layers_that_lead(const Step& s) {
    const int rows = s.test.step.rows;
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      const Layer& l = model_.layers[i];
      if (i == 0) first_in(l, s);
      mix(l, s, true);
      mixer_out(l, rows);
      if (i + 1 < model_.layers.size())
        ffn_and_next(l, model_.layers[i + 1], s);
      else
        ffn(l, rows);
    }
  }

  void plan_runs(const Step& s) {
    const std::size_t bytes = run_layer_bytes();
    std::vector<std::byte> host(bytes * model_.layers.size());
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      const Layer& l = model_.layers[i];
      RunLayer calls{.in = in_args(l, 1), .out = out_args(l, 1), .ffn = ffn_args(l, 1)};
      if (l.delta)
        calls.delta = delta_args(l, s.test.step);
      else
        calls.attention = attention_args(l, s);
      write_run_layer(calls, host.data() + i * bytes);
    }
    plans_ = DeviceArray<std::byte>(host);
    passed_ = DeviceArray<std::byte>(run_passed_bytes(s.context));
    passed_.zero();
  }
  // All layers of a step of one row as one kernel (run.h); `split`: each kind for itself.
  void with_runs(const Step& s, bool split) {
    const std::size_t n = model_.layers.size();
    for (std::size_t i = 0, end = 0; i < n; i = end) {
      for (end = i; end < n && end - i < std::size_t(kMostRunLayers); ++end)
        if (split && model_.layers[end].delta != model_.layers[i].delta) break;
      if (split && !model_.layers[i].delta) {
        for (; i < end; ++i) layer(model_.layers[i], s);
        continue;
      }
      GPU_OK(run_layers(runner_.launch, {.plans = plans_.data() + i * run_layer_bytes(),
                                         .n_layers = int(end - i),
                                         .hidden = b_.hidden,
                                         .passed = passed_.data(),
                                         .sequences = s.test.step.sequences}));
    }
  }

  Model model_;
  Buffers b_;
  Runner runner_;
  DeviceArray<std::byte> plans_, passed_;  // by layer; what runs pass
  bool together_ = false;                  // rows' FFN as one kernel
  bool routes_ = false;                    // and its router with the projection ahead
};

}  // namespace tessera::gpu::bench
