// A dense model's layers as runs against the same layers by their own kernels: the same bits, for
// layers of both kinds and types, run after run, and wherever the model begins and ends.
#include <cstring>

#include "dense.h"
#include "device/gpu/kernels/attention.cuh"
#include "device/gpu/kernels/dense_run_plan.h"

namespace tessera::gpu::bench {
namespace {

std::vector<float> read(const float* from, std::size_t n) {
  std::vector<float> to(n);
  GPU_OK(cudaMemcpy(to.data(), from, n * sizeof(float), cudaMemcpyDeviceToHost));
  return to;
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Keys and values of many sizes, and of both signs.
std::vector<std::uint16_t> halves(std::size_t n) {
  std::vector<std::uint16_t> to(n);
  std::uint32_t x = 1;
  for (std::uint16_t& half : to) {
    x = x * 1664525u + 1013904223u;
    half = std::uint16_t(x >> 16 & 0x8fffu) | 0x3000u;  // 1/8 to 2
  }
  return to;
}

struct Case {
  const char* name;
  DenseShape shape;
  std::vector<int> layers;  // 0: a delta net; 1: attention; 2 more: some matrices in Q6_K
  int position, steps;
  bool logs = false;  // steps go to the log, which is full at times
};

// NaN where no token has been: who reads it shows.
void forget_tokens(const Case& c, std::vector<std::uint16_t>& pages) {
  const KvGeometry of{c.shape.kv, c.shape.dim, c.shape.dim, KvFormat::f16};
  const std::size_t page = c.shape.page() / 2, row = std::size_t(c.shape.dim);
  for (std::size_t token = std::size_t(c.position); token < pages.size() / page * 64; ++token)
    for (int head = 0; head < c.shape.kv; ++head) {
      const KvHead at = kv_head_at(of, head);
      for (const std::int64_t place : {at.k, at.v})
        std::fill_n(pages.data() + token / 64 * page + std::size_t(place) / 2 + token % 64 * row,
                    row, std::uint16_t(0x7e00));
    }
}

// `steps` tokens of one sequence, each way: the residual of each, and all states behind the last.
void run(const Case& c, std::uint32_t number) {
  DenseModel model(c.shape, 0);
  for (const int kind : c.layers) model.layers.push_back(model.make(kind % 2 == 0, kind > 1, 1));
  DenseBuffers b(c.shape, 1);
  Runner runner(std::size_t(64) << 20);
  const std::size_t embd = std::size_t(c.shape.embd), page = c.shape.page();
  std::vector<float> start;
  for (const DenseLayer& l : model.layers)
    if (l.delta) start = read(l.state, model.state_floats());
  std::vector<std::uint16_t> pages =
      halves((std::size_t(c.position + c.steps) / 64 + 1) * page / 2);
  forget_tokens(c, pages);
  std::vector<std::vector<float>> wanted;
  std::unique_ptr<DenseRuns> runs;  // one for all steps, as in a device
  for (const bool as_runs : {false, true}) {
    for (const DenseLayer& l : model.layers) {
      if (l.delta)
        GPU_OK(cudaMemcpy(l.state, start.data(), start.size() * 4, cudaMemcpyHostToDevice));
      else
        GPU_OK(cudaMemcpy(l.pool, pages.data(), pages.size() * 2, cudaMemcpyHostToDevice));
    }
    Random tokens(7);
    for (int i = 0; i < c.steps; ++i) {
      const Step s(1, c.position + i, false);
      const std::vector<float> x = tokens.normals(embd, i % 2 == 0 ? 1.0f : 30.0f);
      GPU_OK(cudaMemcpy(b.hidden, x.data(), embd * 4, cudaMemcpyHostToDevice));
      std::vector<RunLayer> layers;
      for (const DenseLayer& l : model.layers)
        layers.push_back(dense_calls(runner.launch, model, l, b, s));
      runner.fresh();
      const std::string at = std::string("dense run, ") + c.name + ", step " + std::to_string(i);
      if (as_runs) {
        if (runs == nullptr) {
          runs = std::make_unique<DenseRuns>(layers, c.position + c.steps);
          check(at + ": fits", runs->fits());
          if (!runs->fits()) return;
          GPU_OK(cudaMemcpy(runs->passed() + dense_run::passed_layout().run, &number, 4,
                            cudaMemcpyHostToDevice));
        }
        runs->take(layers);
        const bool last = i + 1 == c.steps;
        runs->run(runner.launch, c.logs);
        if (c.logs && last) runs->settle(runner.launch);
        runner.sync();
      } else {
        for (const RunLayer& l : layers) dense_layer(runner.launch, l);
        runner.sync();
      }
      std::vector<float> got = read(b.hidden, embd);
      // A state, or the page of the step's token.
      const std::size_t token = std::size_t(c.position + i);
      for (const DenseLayer& l : model.layers) {
        const auto part =
            l.delta
                ? read(l.state, model.state_floats())
                : read(reinterpret_cast<const float*>(l.pool + token / 64 * page), page / 4);
        got.insert(got.end(), part.begin(), part.end());
      }
      if (!as_runs) {
        wanted.push_back(got);
        continue;
      }
      std::vector<float>& want = wanted[std::size_t(i)];
      // States are in the log, but where it was full or the sequence ends.
      if (c.logs && i % (kMostLogged + 1) != kMostLogged && i + 1 < c.steps)
        got.resize(embd), want.resize(embd);
      check(at + ": residual and states", same(got, want));
      bool finite = true;
      for (std::size_t k = 0; k < embd; ++k) finite = finite && std::isfinite(got[k]);
      check(at + ": finite", finite);
    }
  }
}

}  // namespace

void test_dense_runs() {
  Runner runner(256);
  if (!has_dense_runs(runner.launch)) {
    std::printf("dense runs: not on this GPU\n");
    return;
  }
  const DenseShape full;
  // Fewer super-blocks in every row, heads that read keys of their own group.
  DenseShape small{.embd = 4096, .hidden = 9216, .heads = 28};
  small.delta = {8, 56, 128, 128, 4, true};
  small.gates = BlockType::BF16;
  run({"delta nets", full, {0, 2, 0}, 0, 5}, 0);
  run({"one", full, {2}, 7, 3}, 1);
  run({"with a log", full, {0, 1, 2}, 3, 2 * kMostLogged + 4, true}, 0);
  run({"with attention", full, {0, 2, 1, 0, 3, 2}, 2, 4}, 0x01fffff0u);
  run({"attention at both ends", full, {1, 0, 3}, 61, 5}, 5);
  // Contexts of one span and of many; where a page, spans of other sizes, a second round of spans
  // and a second one of their sums begin.
  for (const int position : {0, 62, 126, 190, 254, 510, 600, 2111, 4094, 8190, 16380, 16383})
    run({"attention alone", full, {3, 1}, position, 3}, 0);
  run({"smaller", small, {2, 0, 1, 0}, 0, 4}, 0);
  run({"smaller, with a log", small, {2, 0}, 0, 4, true}, 0);
  DenseShape plain{.heads = 40, .kv = 8, .dim = 128, .turned = 128, .gated = false};
  plain.delta = {8, 40, 128, 128, 4, false};
  for (const int position : {0, 63, 190, 254, 1500, 16380, 16383})
    run({"heads of 128 without gates", plain, {1, 0, 3}, position, 3}, 0);
  // Groups of seven and of eight: a page's value, or its key, too, takes a query's place.
  DenseShape eight{.kv = 3}, narrow = plain, many = plain;
  narrow.kv = 5, narrow.gated = true;
  many.heads = 136, many.kv = 17, many.delta.n_value_head = 136;  // more heads than blocks
  for (const int position : {0, 62, 126, 4094}) {
    run({"groups of seven", small, {1, 3}, position, 3}, 0);
    run({"groups of eight", eight, {1, 3}, position, 3}, 0);
    run({"groups of eight of 128", narrow, {1, 3}, position, 3}, 0);
    run({"136 heads of 128", many, {1}, position, 3}, 0);
  }
}

}  // namespace tessera::gpu::bench
