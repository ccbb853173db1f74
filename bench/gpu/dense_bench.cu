// Times the blocks of a dense model of the shape of qwen35 full (27B), Q4_K_M, as kernel_bench.cu
// does those of a mixture: each kind of block as a captured graph over the layers that have it,
// then whole steps.
#include <cstring>

#include "bench.h"
#include "device/gpu/kernels/choose.h"
#include "device/gpu/kernels/ffn.cuh"

namespace tessera::gpu::bench {
namespace {

constexpr int kEmbd = 5120, kFf = 17408, kVocab = 248320;
constexpr int kHeads = 24, kKv = 4, kDim = 256, kRot = 64;
constexpr int kMaxRows = 4096, kWide = kHeads * kDim * 2, kSide = 6144;
const GatedDeltaSpec kDelta{16, 48, 128, 128, 4, false};

struct Layer {
  bool delta, more;  // more: the sensitive matrices are Q6_K
  Matrix in[4], out, gate, up, down;
  float* state;
  std::byte* pool;
};

struct Model {
  explicit Model(int n) {
    norm = floats(65536, 0.05f, 1);
    decay = floats(64, 0.0f, 1);
    const std::vector<float> slow(64, -0.1f);
    GPU_OK(cudaMemcpy(decay, slow.data(), 256, cudaMemcpyHostToDevice));
    for (int i = 0; i < n; ++i) layers.push_back(make(i, n));
    head = source.make(BlockType::Q6_K, kVocab, kEmbd);
    GPU_OK(cudaDeviceSynchronize());
  }
  Layer make(int i, int n) {
    using enum BlockType;
    Layer l{};
    l.delta = i % 4 != 3;
    l.more = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    const BlockType some = l.more ? Q6_K : Q4_K;
    if (l.delta) {
      l.in[0] = source.make(some, kDelta.conv_channels(), kEmbd);
      l.in[1] = source.make(Q4_K, kDelta.value_width(), kEmbd);
      l.in[2] = source.make(F32, 48, kEmbd);
      l.in[3] = source.make(F32, 48, kEmbd);
      l.state = floats(std::size_t(delta_state_floats(kDelta)) * 8, 0.01f, 2);
    } else {
      l.in[0] = source.make(Q4_K, kWide, kEmbd);
      l.in[1] = source.make(Q4_K, kKv * kDim, kEmbd);
      l.in[2] = source.make(some, kKv * kDim, kEmbd);
      GPU_OK(cudaMalloc(&l.pool, 65 * page()));
      GPU_OK(cudaMemset(l.pool, 0x2c, 65 * page()));
    }
    l.out = source.make(Q4_K, kEmbd, kSide);
    l.gate = source.make(Q4_K, kFf, kEmbd);
    l.up = source.make(Q4_K, kFf, kEmbd);
    l.down = source.make(some, kEmbd, kFf);
    return l;
  }
  static std::size_t page() {
    return std::size_t(kv_layer_page_bytes({kKv, kDim, kDim, KvFormat::f16}));
  }

  Source source;
  float *norm, *decay;
  std::vector<Layer> layers;
  Matrix head;
};

struct Buffers {
  Buffers() {
    const std::size_t r = kMaxRows;
    hidden = floats(r * kEmbd, 1.0f, 4);
    wide = floats(r * kWide, 1.0f, 5);
    side = floats(r * kSide, 1.0f, 6);
    side2 = floats(r * kSide, 1.0f, 7);
    mixed = floats(r * kSide, 1.0f, 8);
    heads = floats(r * 96, 1.0f, 9);
    cosines = floats(r * 64, 1.0f, 10);
    logits = floats(std::size_t(8) * kVocab, 1.0f, 11);
    GPU_OK(cudaMalloc(&choices, 8 * sizeof(RowChoice)));
    GPU_OK(cudaMemset(choices, 0, 8 * sizeof(RowChoice)));  // the largest logit
    GPU_OK(cudaMalloc(&chosen, 8 * sizeof(ChosenRow)));
  }
  float *hidden, *wide, *side, *side2, *mixed, *heads, *cosines, *logits;
  RowChoice* choices;
  ChosenRow* chosen;
};

class DenseBench {
 public:
  DenseBench(int layers, bool chained) : model_(layers), runner_(std::size_t(1) << 30) {
    runner_.launch.chained = chained;
  }

  void decode(int rows) {
    const Step s(rows, 0, false);
    const auto in = [&](const Layer& l) { mixer_in(l, rows); };
    for (const bool more : {false, true}) {
      const auto of = [more](const Layer& l) { return l.delta && l.more == more; };
      block(more ? "delta in-projection, Q6_K" : "delta in-projection, Q4_K", rows, of, in_bytes,
            in);
    }
    block(
        "delta rule", rows, is_delta,
        [&](const Layer&) { return double(delta_state_floats(kDelta)) * 8 * rows; },
        [&](const Layer& l) { mix(l, s); });
    block("attention in-projection", rows, is_attention, in_bytes, in);
    block(
        "attention, no context", rows, is_attention, [](const Layer&) { return 0.0; },
        [&](const Layer& l) { mix(l, s); });
    block(
        "delta out-projection", rows, is_delta, [](const Layer& l) { return bytes_of(l.out); },
        [&](const Layer& l) { mixer_out(l, rows); });
    block(
        "FFN: gate and up", rows, any,
        [](const Layer& l) { return bytes_of(l.gate) + bytes_of(l.up); },
        [&](const Layer& l) {
          const FfnArgs f = ffn_args(l, rows);
          GPU_OK(dense_hidden(runner_.launch, f, ffn_scratch(f, runner_.launch.workspace)));
        });
    for (const bool more : {false, true})
      block(
          more ? "FFN: down, Q6_K" : "FFN: down, Q4_K", rows,
          [more](const Layer& l) { return l.more == more; },
          [](const Layer& l) { return bytes_of(l.down); },
          [&](const Layer& l) {
            const FfnArgs f = ffn_args(l, rows);
            GPU_OK(dense_output(runner_.launch, f, ffn_scratch(f, runner_.launch.workspace),
                                f.hidden, true));
          });
    block("FFN", rows, any, ffn_bytes, [&](const Layer& l) { ffn(l, rows); });
    print_reads("head and choice", rows, time([&] { head(rows); }), bytes_of(model_.head));
    double bytes = bytes_of(model_.head);
    for (const Layer& l : model_.layers) bytes += in_bytes(l) + bytes_of(l.out) + ffn_bytes(l);
    const double us = time([&] {
      for (const Layer& l : model_.layers) layer(l, s);
      head(rows);
    });
    print_reads("whole step", rows, us, bytes);
    std::printf("== dense decode, rows %d: %.1f us a step, %.1f tokens/s\n", rows, us,
                1e6 * rows / us);
  }

  void prefill(int rows) {
    const Step s(rows, 0, true);
    const double r = 2.0 * rows * kEmbd;
    products("delta in-projection", rows, is_delta, r * (10240 + 6144 + 96),
             [&](const Layer& l) { mixer_in(l, rows); });
    products("delta rule", rows, is_delta, rows * 48.0 * 128 * 128 * 6,
             [&](const Layer& l) { mix(l, s); });
    products("delta out-projection", rows, is_delta, r * kSide,
             [&](const Layer& l) { mixer_out(l, rows); });
    products("attention in-projection", rows, is_attention, r * (kWide + 2 * kKv * kDim),
             [&](const Layer& l) { mixer_in(l, rows); });
    products("attention", rows, is_attention, 2.0 * rows * rows * kHeads * kDim,
             [&](const Layer& l) { mix(l, s); });
    products("FFN", rows, any, r * kFf * 3, [&](const Layer& l) { ffn(l, rows); });
    const double us = time(
        [&] {
          for (const Layer& l : model_.layers) layer(l, s);
        },
        3);
    std::printf("== dense prefill of %d rows: %.2f ms, %.0f tokens/s\n", rows, us * 1e-3,
                1e6 * rows / us);
  }

 private:
  static bool any(const Layer&) { return true; }
  static bool is_delta(const Layer& l) { return l.delta; }
  static bool is_attention(const Layer& l) { return !l.delta; }
  static double in_bytes(const Layer& l) {
    double bytes = 0;
    for (const Matrix& m : l.in)
      if (m.data != nullptr) bytes += bytes_of(m);
    return bytes;
  }
  static double ffn_bytes(const Layer& l) {
    return bytes_of(l.gate) + bytes_of(l.up) + bytes_of(l.down);
  }

  template <typename F>
  double time(F work, int repeats = 15) {
    return median_us(runner_.launch.stream, work, repeats);
  }
  // Microseconds of a layer, and how many layers there are.
  template <typename Which, typename F>
  std::pair<double, int> a_layer(Which which, F work, int repeats) {
    int n = 0;
    for (const Layer& l : model_.layers) n += which(l) ? 1 : 0;
    if (n == 0) return {0.0, 0};
    const double us = time(
        [&] {
          for (const Layer& l : model_.layers)
            if (which(l)) work(l);
        },
        repeats);
    return {us / n, n};
  }
  template <typename Which, typename Bytes, typename F>
  void block(const char* name, int rows, Which which, Bytes bytes, F work) {
    const auto [us, n] = a_layer(which, work, 15);
    if (n == 0) return;
    double sum = 0;
    for (const Layer& l : model_.layers) sum += which(l) ? bytes(l) : 0.0;
    print_reads(name, rows, us, sum / n);
  }
  template <typename Which, typename F>
  void products(const char* name, int rows, Which which, double flops, F work) {
    const auto [us, n] = a_layer(which, work, 3);
    if (n > 0) print_products(name, rows, us, flops);
  }

  Input normed() const {
    return {.kind = InputKind::rms_norm,
            .x = b_.hidden,
            .stride = kEmbd,
            .cols = kEmbd,
            .weight = model_.norm,
            .eps = 1e-6f};
  }
  void mixer_in(const Layer& l, int rows) {
    ProjectArgs p{.input = normed(), .rows = rows};
    if (l.delta) {
      p.n_outputs = 4;
      p.outputs = {{{l.in[0], b_.wide, kDelta.conv_channels(), false},
                    {l.in[1], b_.side, kSide, false},
                    {l.in[2], b_.heads, 48, false},
                    {l.in[3], b_.heads + rows * 48, 48, false}}};
    } else {
      p.n_outputs = 3;
      p.outputs = {{{l.in[0], b_.wide, kWide, false},
                    {l.in[1], b_.side, kKv * kDim, false},
                    {l.in[2], b_.side2, kKv * kDim, false}}};
    }
    GPU_OK(project(runner_.launch, p));
  }
  void mix(const Layer& l, const Step& s) {
    const StepRows& step = s.test.step;
    if (l.delta)
      GPU_OK(gated_delta(runner_.launch, {.step = step,
                                          .spec = kDelta,
                                          .qkv = b_.wide,
                                          .alpha = b_.heads,
                                          .beta_logits = b_.heads + step.rows * 48,
                                          .taps = model_.norm,
                                          .dt_bias = model_.norm,
                                          .a = model_.decay,
                                          .state = l.state,
                                          .slot_stride = delta_state_floats(kDelta),
                                          .out = b_.mixed,
                                          .gate = b_.side,
                                          .norm = model_.norm,
                                          .eps = 1e-6f}));
    else
      GPU_OK(attention(runner_.launch, {.step = step,
                                        .kv = {kKv, kDim, kDim, KvFormat::f16},
                                        .n_head = kHeads,
                                        .q = b_.wide,
                                        .q_stride = kWide,
                                        .q_head_stride = 2 * kDim,
                                        .k = b_.side,
                                        .v = b_.side2,
                                        .k_stride = kKv * kDim,
                                        .v_stride = kKv * kDim,
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
                                        .out_stride = kSide}));
  }
  void mixer_out(const Layer& l, int rows) {
    Input in{.kind = InputKind::plain, .x = b_.mixed, .stride = kSide, .cols = kSide};
    if (l.delta) {
      in.kind = InputKind::gated_rms;
      in.weight = model_.norm, in.eps = 1e-6f, in.gate = b_.side, in.gate_stride = kSide,
      in.gate_open = rows <= 8, in.head_dim = 128;
      in.rounded =
          rows <= 8 && leaves_rounded(runner_.launch, kDelta,
                                      {.rows = rows, .n_sequences = rows, .max_sequence_rows = 1});
    } else {
      in.rounded = attention_leaves_rounded(
          {.step = {.rows = rows}, .kv = {kKv, kDim, kDim, KvFormat::f16}, .n_head = kHeads});
    }
    GPU_OK(project(runner_.launch, {.input = in,
                                    .rows = rows,
                                    .n_outputs = 1,
                                    .outputs = {{{l.out, b_.hidden, kEmbd, true}}}}));
  }
  FfnArgs ffn_args(const Layer& l, int rows) {
    FfnArgs f{
        .rows = rows, .n_embd = kEmbd, .eps = 1e-6f, .hidden = b_.hidden, .norm = model_.norm};
    f.dense = {.gate = l.gate, .up = l.up, .down = l.down};
    return f;
  }
  void ffn(const Layer& l, int rows) { GPU_OK(ffn_all(runner_.launch, ffn_args(l, rows))); }
  void head(int rows) {
    GPU_OK(project(runner_.launch, {.input = normed(),
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
    const int rows = s.test.step.rows;
    mixer_in(l, rows);
    mix(l, s);
    mixer_out(l, rows);
    ffn(l, rows);
  }

  Model model_;
  Buffers b_;
  Runner runner_;
};

}  // namespace

void bench_dense(int layers, const char* what) {
  DenseBench bench(layers, std::strchr(what, 's') == nullptr);
  if (std::strchr(what, 'd') != nullptr)
    for (const int rows : {1, 8}) bench.decode(rows);
  if (std::strchr(what, 'p') != nullptr) bench.prefill(kMaxRows);
}

}  // namespace tessera::gpu::bench
