// Times the kernels on a model of the shape of qwen35moe full, Q4_K_M: block by block as captured
// graphs over all 40 layers, whole tokens, and prompt chunks.
//
//   kernel_bench [layers [d][c][p][s]]        # decode, contexts, prompts; s: not chained
//   kernel_bench [layers [2]...[8]]           # decode of so many rows
//   kernel_bench [layers m]                   # prompts of 1,024 and 2,048
//   kernel_bench [layers [q][h][w]]           # of 512, 2,048, 4,096, whole: for a profiler
//   kernel_bench [layers dense [d][r][l][p][s]]  # a dense model (dense_bench.cu); l: for 3 s
//   kernel_bench [1 t]                        # draws (choose_bench.cu)
#include <cstring>

#include "mixture.h"

namespace tessera::gpu::bench {
namespace {

class Bench : Mixture {
 public:
  using Mixture::Mixture;

  template <typename F>
  double time(F work, int repeats = 15) {
    return median_us(runner_.launch.stream, work, repeats, [&] {
      GPU_OK(cudaMemcpyAsync(b_.hidden, b_.start, Buffers::kStartFloats * sizeof(float),
                             cudaMemcpyDeviceToDevice, runner_.launch.stream));
    });
  }

  // One block over every layer of a kind: us a layer, beside what it must read or compute.
  template <typename F>
  void block(const char* name, int rows, int which, double bytes, double flops, F work) {
    int n = 0;
    for (const Layer& l : model_.layers) n += which < 0 || int(l.delta) == which ? 1 : 0;
    if (n == 0) return;
    const double us = time(
                          [&] {
                            for (const Layer& l : model_.layers)
                              if (which < 0 || int(l.delta) == which) work(l);
                          },
                          rows > 8 ? 3 : 15) /
                      n;
    if (flops > 0)
      print_products(name, rows, us, flops);
    else
      print_reads(name, rows, us, bytes);
  }

  void print_step(const char* how, int rows, int context, double us) {
    std::printf("== decode, context %d, rows %d%s: %.1f us a step, %.0f tokens/s\n", context, rows,
                how, us, 1e6 * rows / us);
    std::fflush(stdout);
  }

  // How many different experts the last layer's rows chose: what the experts' bytes depend on.
  int print_experts(int rows) {
    std::vector<std::int32_t> ids(std::size_t(rows) * kUsed);
    GPU_OK(cudaMemcpy(ids.data(), b_.ids, ids.size() * 4, cudaMemcpyDeviceToHost));
    std::sort(ids.begin(), ids.end());
    const auto experts = int(std::unique(ids.begin(), ids.end()) - ids.begin());
    std::printf("of %zu pairs %d experts\n", ids.size(), experts);
    return experts;
  }

  void decode(int rows, int context) {
    Step s(rows, context, false);
    together_ = routes_ = false;
    const Layer& d = model_.layers[8];  // a layer without the wider types
    const double in = bytes_of(d.in[0]) + bytes_of(d.in[1]) + bytes_of(d.in[2]) * 2;
    const double expert = double(d.shape.down_offset),
                 down = double(d.shape.bytes - d.shape.down_offset);
    block("delta in-projection", rows, 1, in, 0, [&](const Layer& l) { mixer_in(l, rows); });
    block("delta step", rows, 1, double(delta_state_floats(kDelta)) * 8 * rows, 0,
          [&](const Layer& l) { mix(l, s); });
    block("delta out-projection", rows, 1, bytes_of(d.out), 0,
          [&](const Layer& l) { mixer_out(l, rows); });
    block("attention in-projection", rows, 0, bytes_of(d.out) * 2 + 2e6 * .57, 0,
          [&](const Layer& l) { mixer_in(l, rows); });
    block("attention", rows, 0, double(context + 1) * kKv * kDim * 4 * rows, 0,
          [&](const Layer& l) { mix(l, s); });
    block("ffn whole", rows, -1, (expert + down) * (1 + kUsed * rows) + bytes_of(d.router), 0,
          [&](const Layer& l) { ffn(l, rows); });
    const auto part = [&](const char* name, double bytes, auto enqueue) {
      block(name, rows, -1, bytes, 0, [&](const Layer& l) {
        const FfnArgs f = ffn_args(l, rows);
        GPU_OK(enqueue(f, ffn_scratch(f, runner_.launch.workspace)));
      });
    };
    const double branches = 1 + kUsed * rows;
    part("  router", bytes_of(d.router), [&](const FfnArgs& f, const FfnScratch& scratch) {
      return ffn_logits(runner_.launch, f, scratch);
    });
    part("  choice, gate and up", expert * branches,
         [&](const FfnArgs& f, const FfnScratch& scratch) {
           return expert_hidden(runner_.launch, f, scratch, true, true);
         });
    part("  choice, down and sum", down * branches,
         [&](const FfnArgs& f, const FfnScratch& scratch) {
           return fused_output(runner_.launch, f, scratch);
         });
    const int experts = rows > 1 ? print_experts(rows) : kUsed;
    const bool together = rows > 1 && rows <= kDecodeRows && has_runs(runner_.launch);
    if (together) {
      passed_ = DeviceArray<std::byte>(run_passed_bytes(context));
      passed_.zero();
      print_step(", FFN apart", rows, context, time([&] {
                   for (const Layer& l : model_.layers) layer(l, s);
                   head(rows);
                 }));
      together_ = true;
      block("ffn together, each expert once", rows, -1,
            (expert + down) * (1 + experts) + bytes_of(d.router), 0,
            [&](const Layer& l) { ffn(l, rows); });
      block("the same and a delta layer's projections", rows, 1,
            (expert + down) * (1 + experts) + bytes_of(d.router) + in, 0,
            [&](const Layer& l) { ffn_and_next(l, l, s); });
      print_step(", projections with the FFN", rows, context, time([&] {
                   layers_that_lead(s);
                   head(rows);
                 }));
      routes_ = true;
      print_step(", the router with the mixer, too", rows, context, time([&] {
                   layers_that_lead(s);
                   head(rows);
                 }));
      routes_ = false;
    }
    const double head_us = time([&] { head(rows); });
    std::printf("%-34s rows %5d  %9.2f us  %7.0f GB/s\n", "head and choice", rows, head_us,
                bytes_of(model_.head) / head_us * 1e-3);
    const bool runs = rows == 1 && has_runs(runner_.launch);
    if (runs) plan_runs(s);
    for (int i = 0; i < (runs ? 2 : 1); ++i) {
      print_step(together ? ", FFN together" : "", rows, context, time([&] {
                   for (const Layer& l : model_.layers) layer(l, s);
                   head(rows);
                 }));
      if (runs)
        for (const bool split : {true, false})
          print_step(split ? ", delta layers as runs" : ", all layers as a run", rows, context,
                     time([&] {
                       with_runs(s, split);
                       head(rows);
                     }));
    }
  }

  // One row at growing contexts, layer by layer and as a run.
  void contexts() {
    for (const int context : {0, 1023, 4095, 8191, 16383, 32767}) {
      const Step s(1, context, false);
      plan_runs(s);
      const double layers = time([&] {
        for (const Layer& l : model_.layers) layer(l, s);
      });
      const double run = time([&] { with_runs(s, false); });
      std::printf("context %6d: layers %7.1f us, as a run %7.1f us\n", context, layers, run);
      std::fflush(stdout);
    }
  }

  void prefill(int rows, int context) {
    Step s(rows, context, true);
    const double r = rows;
    block("delta in-projection", rows, 1, 0, 2 * r * kEmbd * 12352,
          [&](const Layer& l) { mixer_in(l, rows); });
    block("delta recurrence", rows, 1, 0, r * 32 * 128 * 128 * 6,
          [&](const Layer& l) { mix(l, s); });
    block("delta out-projection", rows, 1, 0, 2 * r * kEmbd * 4096,
          [&](const Layer& l) { mixer_out(l, rows); });
    block("attention in-projection", rows, 0, 0, 2 * r * kEmbd * 9216,
          [&](const Layer& l) { mixer_in(l, rows); });
    block("attention", rows, 0, 0, 4 * r * (context + r / 2) * kHeads * kDim,
          [&](const Layer& l) { mix(l, s); });
    block("ffn whole", rows, -1, 0, 2 * r * kEmbd * kFf * 3 * 9,
          [&](const Layer& l) { ffn(l, rows); });
    block("ffn route", rows, -1, 0, 2 * r * kEmbd * kExperts,
          [&](const Layer& l) { GPU_OK(ffn_route(runner_.launch, ffn_args(l, rows))); });
    block("ffn branches", rows, -1, 0, 2 * r * kEmbd * kFf * 3 * 9,
          [&](const Layer& l) { GPU_OK(ffn_branches(runner_.launch, ffn_args(l, rows))); });
    block("ffn finish", rows, -1, r * kEmbd * 4 * 11, 0,
          [&](const Layer& l) { GPU_OK(ffn_finish(runner_.launch, ffn_args(l, rows))); });
    whole_prompt(s, rows, context);
  }
  void whole_prompt(const Step& s, int rows, int context) {
    const double us = time(
        [&] {
          for (const Layer& l : model_.layers) layer(l, s);
        },
        3);
    std::printf("== prefill of %d rows after %d: %.2f ms, %.0f tokens/s\n", rows, context,
                us * 1e-3, 1e6 * rows / us);
    std::fflush(stdout);
  }

  void whole_prompt(int rows) { whole_prompt(Step(rows, 0, true), rows, 0); }
};

}  // namespace
}  // namespace tessera::gpu::bench

int main(int argc, char** argv) {
  using tessera::gpu::bench::Bench;
  const char* only = argc > 2 ? argv[2] : "dp";
  if (std::strcmp(only, "dense") == 0) {
    tessera::gpu::bench::bench_dense(std::atoi(argv[1]), argc > 3 ? argv[3] : "d");
    return 0;
  }
  if (std::strcmp(only, "t") == 0) {
    tessera::gpu::bench::bench_draws();
    return 0;
  }
  Bench bench(argc > 1 ? std::atoi(argv[1]) : 40, std::strchr(only, 's') == nullptr);
  if (std::strchr(only, 'd') != nullptr) {
    bench.decode(1, 0);
    bench.decode(1, 16383);
    bench.decode(8, 0);
  }
  for (const char* c = only; *c != 0; ++c)
    if (*c >= '2' && *c <= '8') bench.decode(*c - '0', 0);
  if (std::strchr(only, 'c') != nullptr) bench.contexts();
  if (std::strchr(only, 'p') != nullptr) {
    bench.prefill(512, 0);
    bench.prefill(4096, 0);
  }
  if (std::strchr(only, 'm') != nullptr) {
    bench.prefill(1024, 0);
    bench.prefill(2048, 0);
  }
  if (std::strchr(only, 'q') != nullptr) bench.whole_prompt(512);
  if (std::strchr(only, 'h') != nullptr) bench.whole_prompt(2048);
  if (std::strchr(only, 'w') != nullptr) bench.whole_prompt(4096);
}
