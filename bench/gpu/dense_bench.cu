// Times the blocks of a dense model of the shape of qwen35 full (27B), Q4_K_M, as kernel_bench.cu
// does those of a mixture: each kind of block as a captured graph over the layers that have it,
// then whole steps.
#include <cstring>

#include "dense.h"

namespace tessera::gpu::bench {
namespace {

constexpr int kMaxRows = 4096;

class DenseBench {
 public:
  DenseBench(int layers, bool chained)
      : model_(kShape, layers), b_(kShape, kMaxRows), runner_(std::size_t(1) << 30) {
    runner_.launch.chained = chained;
    head_ = model_.source.make(BlockType::Q6_K, kShape.vocab, kShape.embd);
    logits_ = floats(std::size_t(8) * std::size_t(kShape.vocab), 1.0f, 11);
    GPU_OK(cudaMalloc(&choices_, 8 * sizeof(RowChoice)));
    GPU_OK(cudaMemset(choices_, 0, 8 * sizeof(RowChoice)));  // the largest logit
    GPU_OK(cudaMalloc(&chosen_, 8 * sizeof(ChosenRow)));
  }

  void decode(int rows) {
    const Step s(rows, 0, false);
    const auto in = [&](const DenseLayer& l) { GPU_OK(project(runner_.launch, calls(l, s).in)); };
    for (const bool more : {false, true}) {
      const auto of = [more](const DenseLayer& l) { return l.delta && l.more == more; };
      block(more ? "delta in-projection, Q6_K" : "delta in-projection, Q4_K", rows, of, in_bytes,
            in);
    }
    block(
        "delta rule", rows, is_delta,
        [&](const DenseLayer&) { return double(delta_state_floats(kShape.delta)) * 8 * rows; },
        [&](const DenseLayer& l) { mix(runner_.launch, calls(l, s)); });
    block("attention in-projection", rows, is_attention, in_bytes, in);
    block(
        "attention, no context", rows, is_attention, [](const DenseLayer&) { return 0.0; },
        [&](const DenseLayer& l) { mix(runner_.launch, calls(l, s)); });
    block(
        "delta out-projection", rows, is_delta, [](const DenseLayer& l) { return bytes_of(l.out); },
        [&](const DenseLayer& l) { GPU_OK(project(runner_.launch, calls(l, s).out)); });
    block(
        "FFN: gate and up", rows, any,
        [](const DenseLayer& l) { return bytes_of(l.gate) + bytes_of(l.up); },
        [&](const DenseLayer& l) {
          const FfnArgs f = calls(l, s).ffn;
          GPU_OK(dense_hidden(runner_.launch, f, ffn_scratch(f, runner_.launch.workspace)));
        });
    for (const bool more : {false, true})
      block(
          more ? "FFN: down, Q6_K" : "FFN: down, Q4_K", rows,
          [more](const DenseLayer& l) { return l.more == more; },
          [](const DenseLayer& l) { return bytes_of(l.down); },
          [&](const DenseLayer& l) {
            const FfnArgs f = calls(l, s).ffn;
            GPU_OK(dense_output(runner_.launch, f, ffn_scratch(f, runner_.launch.workspace),
                                f.hidden, true));
          });
    block("FFN", rows, any, ffn_bytes, [&](const DenseLayer& l) { ffn(l, s); });
    print_reads("head and choice", rows, time([&] { head(rows); }), bytes_of(head_));
    double bytes = bytes_of(head_);
    for (const DenseLayer& l : model_.layers)
      bytes += in_bytes(l) + bytes_of(l.out) + ffn_bytes(l);
    const double us = time([&] {
      for (const DenseLayer& l : model_.layers) dense_layer(runner_.launch, calls(l, s));
      head(rows);
    });
    print_reads("whole step", rows, us, bytes);
    std::printf("== dense decode, rows %d: %.1f us a step, %.1f tokens/s\n", rows, us,
                1e6 * rows / us);
    if (rows == 1) decode_as_runs();
  }
  // One row, the layers as dense_run.h has them.
  void decode_as_runs() {
    if (!has_dense_runs(runner_.launch)) return;
    const Step s(1, 0, false);
    double bytes = bytes_of(head_);
    for (const DenseLayer& l : model_.layers)
      bytes += in_bytes(l) + bytes_of(l.out) + ffn_bytes(l);
    for (const bool more : {false, true}) {
      const auto of = [more](const DenseLayer& l) { return l.delta && l.more == more; };
      as_runs(more ? "delta nets as a run, Q6_K" : "delta nets as a run, Q4_K", s, of);
    }
    as_runs("all layers as a run", s, any);
    for (const int context : {63, 127, 4095, 16383}) {
      const Step behind(1, context, false);
      as_runs(("all, behind " + std::to_string(context)).c_str(), behind, any);
    }
    DenseRuns runs(calls_where(s, any), s.context);
    const double us = a_step(runs, [&] { head(1); });
    print_reads("whole step as a run", 1, us, bytes);
    std::printf("== dense decode, as runs: %.1f us a step, %.1f tokens/s\n", us, 1e6 / us);
  }

  // The step behind 63 tokens, a whole page of them, for some seconds.
  void decode_for_long() {
    if (!has_dense_runs(runner_.launch)) return;
    const Step s(1, 63, false);
    DenseRuns runs(calls_where(s, any), s.context);
    const double us = lasting_us(
        runner_.launch.stream,
        [&] {
          for (int i = 0; i <= kMostLogged; ++i) {
            runs.run(runner_.launch, true);
            head(1);
          }
        },
        3.0);
    std::printf("== dense decode, as runs, behind 63 for 3 s: %.1f us a step, %.1f tokens/s\n",
                us / (kMostLogged + 1), 1e6 * (kMostLogged + 1) / us);
  }

  void prefill(int rows) {
    const Step s(rows, 0, true);
    const double r = 2.0 * rows * kShape.embd;
    products("delta in-projection", rows, is_delta, r * (10240 + 6144 + 96),
             [&](const DenseLayer& l) { GPU_OK(project(runner_.launch, calls(l, s).in)); });
    products("delta rule", rows, is_delta, rows * 48.0 * 128 * 128 * 6,
             [&](const DenseLayer& l) { mix(runner_.launch, calls(l, s)); });
    products("delta out-projection", rows, is_delta, r * kShape.side(),
             [&](const DenseLayer& l) { GPU_OK(project(runner_.launch, calls(l, s).out)); });
    products("attention in-projection", rows, is_attention,
             r * (2 * kShape.heads * 256 + 2 * kShape.kv * 256),
             [&](const DenseLayer& l) { GPU_OK(project(runner_.launch, calls(l, s).in)); });
    products("attention", rows, is_attention, 2.0 * rows * rows * kShape.heads * 256,
             [&](const DenseLayer& l) { mix(runner_.launch, calls(l, s)); });
    products("FFN", rows, any, r * kShape.hidden * 3, [&](const DenseLayer& l) { ffn(l, s); });
    const double us = time(
        [&] {
          for (const DenseLayer& l : model_.layers) dense_layer(runner_.launch, calls(l, s));
        },
        3);
    std::printf("== dense prefill of %d rows: %.2f ms, %.0f tokens/s\n", rows, us * 1e-3,
                1e6 * rows / us);
  }

 private:
  static bool any(const DenseLayer&) { return true; }
  static bool is_delta(const DenseLayer& l) { return l.delta; }
  static bool is_attention(const DenseLayer& l) { return !l.delta; }
  static double in_bytes(const DenseLayer& l) {
    double bytes = 0;
    for (const Matrix& m : l.in)
      if (m.data != nullptr) bytes += bytes_of(m);
    return bytes;
  }
  static double ffn_bytes(const DenseLayer& l) {
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
    for (const DenseLayer& l : model_.layers) n += which(l) ? 1 : 0;
    if (n == 0) return {0.0, 0};
    const double us = time(
        [&] {
          for (const DenseLayer& l : model_.layers)
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
    for (const DenseLayer& l : model_.layers) sum += which(l) ? bytes(l) : 0.0;
    print_reads(name, rows, us, sum / n);
  }
  template <typename Which>
  std::vector<RunLayer> calls_where(const Step& s, Which which) {
    std::vector<RunLayer> layers;
    for (const DenseLayer& l : model_.layers)
      if (which(l)) layers.push_back(calls(l, s));
    return layers;
  }
  // Of the steps that go to the log and the one that writes the states.
  template <typename F>
  double a_step(DenseRuns& runs, F behind) {
    return time([&] {
             for (int i = 0; i <= kMostLogged; ++i) {
               runs.run(runner_.launch, true);
               behind();
             }
           }) /
           (kMostLogged + 1);
  }
  template <typename Which>
  void as_runs(const char* name, const Step& s, Which which) {
    double bytes = 0;
    for (const DenseLayer& l : model_.layers)
      if (which(l)) bytes += in_bytes(l) + bytes_of(l.out) + ffn_bytes(l);
    DenseRuns runs(calls_where(s, which), s.context);
    const double n = double(runs.layers());
    print_reads(name, 1, a_step(runs, [] {}) / n, bytes / n);
  }
  template <typename Which, typename F>
  void products(const char* name, int rows, Which which, double flops, F work) {
    const auto [us, n] = a_layer(which, work, 3);
    if (n > 0) print_products(name, rows, us, flops);
  }

  RunLayer calls(const DenseLayer& l, const Step& s) {
    return dense_calls(runner_.launch, model_, l, b_, s);
  }
  void ffn(const DenseLayer& l, const Step& s) {
    GPU_OK(ffn_all(runner_.launch, calls(l, s).ffn));
  }
  void head(int rows) {
    GPU_OK(project(runner_.launch, {.input = dense_normed(model_, b_),
                                    .rows = rows,
                                    .n_outputs = 1,
                                    .outputs = {{{head_, logits_, kShape.vocab, false}}}}));
    GPU_OK(choose(runner_.launch, {.logits = logits_,
                                   .rows = rows,
                                   .n_vocab = kShape.vocab,
                                   .n_token = kShape.vocab,
                                   .choices = choices_,
                                   .out = chosen_}));
  }

  static inline const DenseShape kShape{};
  DenseModel model_;
  DenseBuffers b_;
  Runner runner_;
  Matrix head_;
  float* logits_;
  RowChoice* choices_;
  ChosenRow* chosen_;
};

}  // namespace

void bench_dense(int layers, const char* what) {
  DenseBench bench(layers, std::strchr(what, 's') == nullptr);
  if (std::strchr(what, 'd') != nullptr)
    for (const int rows : {1, 8}) bench.decode(rows);
  if (std::strchr(what, 'r') != nullptr) bench.decode_as_runs();
  if (std::strchr(what, 'l') != nullptr) bench.decode_for_long();
  if (std::strchr(what, 'p') != nullptr) bench.prefill(kMaxRows);
}

}  // namespace tessera::gpu::bench
