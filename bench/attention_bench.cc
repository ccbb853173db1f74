// Attention over a paged KV cache and the gated delta net, one core.
//
// Attention: bytes are those of the visible K and V, operations two per multiply-add. Gated delta:
// time is of one token through all value heads of a layer, 128 x 128 each. Contexts and layers are
// large enough, or repeated over enough copies, to come from memory where the name says so.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "device/cpu/attention.h"
#include "device/cpu/gated_delta.h"
#include "device/cpu/isa.h"

namespace tessera::cpu {
namespace {

std::size_t index(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

std::vector<float> random(std::int64_t n) {
  std::mt19937 engine(1);
  std::uniform_real_distribution<float> unit(-1.0f, 1.0f);
  std::vector<float> x(index(n));
  for (float& v : x) v = unit(engine);
  return x;
}

void normalize(std::vector<float>* rows, int width) {
  for (std::size_t at = 0; at < rows->size(); at += index(width)) {
    float sum = 1e-6f;
    for (std::size_t i = 0; i < index(width); ++i) sum += (*rows)[at + i] * (*rows)[at + i];
    for (std::size_t i = 0; i < index(width); ++i) (*rows)[at + i] /= std::sqrt(sum);
  }
}

bool unavailable(benchmark::State& state, Isa isa) {
  if (isa_supported(isa)) return false;
  state.SkipWithError("instruction set not available");
  return true;
}

// Arguments: isa, KV type, head dimension, heads per KV head, context, rows.
void attention(benchmark::State& state) {
  const Isa isa = static_cast<Isa>(state.range(0));
  if (unavailable(state, isa)) return;
  const int dim = static_cast<int>(state.range(2)), heads = static_cast<int>(state.range(3));
  const int context = static_cast<int>(state.range(4)), rows = static_cast<int>(state.range(5));
  const KvGeometry geometry{1, dim, dim, static_cast<KvType>(state.range(1))};
  const int pages = (context + kPageTokens - 1) / kPageTokens;
  const std::size_t page_bytes = kv_layer_page_bytes(geometry);
  auto pool = AlignedBuffer::allocate(page_bytes * index(pages));
  if (!pool) return state.SkipWithError("no memory");
  const auto token = random(dim);
  std::vector<std::int32_t> table;
  for (int page = 0; page < pages; ++page) {
    table.push_back(page);
    for (int t = 0; t < kPageTokens; ++t) {
      store_kv(geometry, pool->data() + index(page) * page_bytes, t, token.data(), token.data());
    }
  }
  const auto q = random(static_cast<std::int64_t>(rows) * heads * dim);
  std::vector<float> out(q.size());
  AttentionTask task;
  task.geometry = geometry;
  task.pool = pool->data();
  task.page_stride = static_cast<std::int64_t>(page_bytes);
  task.pages = table.data();
  task.heads = heads;
  task.rows = rows;
  task.first_position = context - rows;
  task.q = q.data();
  task.out = out.data();
  task.q_row_stride = task.out_row_stride = heads * dim;
  task.q_head_stride = task.out_head_stride = dim;
  task.scale = 0.1f;
  std::vector<float> scratch(attention_scratch_bytes(task) / sizeof(float) + 16);
  for (auto _ : state) {
    attend(attention_kernels(isa), task, reinterpret_cast<std::byte*>(scratch.data()));
    benchmark::DoNotOptimize(out.data());
  }
  const double pairs =
      static_cast<double>(heads) * rows * (static_cast<double>(context) - 0.5 * (rows - 1));
  state.counters["GFLOP/s"] =
      benchmark::Counter(pairs * dim * 4 * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(page_bytes) * pages * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(isa_name(isa));
}

void attention_arguments(benchmark::internal::Benchmark* b) {
  for (const int isa : {2, 1, 0}) {
    const int f16 = static_cast<int>(KvType::f16), q8 = static_cast<int>(KvType::q8_0);
    const int f32 = static_cast<int>(KvType::f32);
    for (const int type : {f16, f32, q8}) {
      b->Args({isa, type, 256, 8, 65536, 1});
      b->Args({isa, type, 128, 2, 65536, 1});
    }
    b->Args({isa, f16, 256, 6, 65536, 1});
    b->Args({isa, f16, 128, 1, 65536, 1});
    for (const int type : {f16, f32, q8}) b->Args({isa, type, 256, 8, 4096, 64});
    b->Args({isa, f16, 128, 6, 4096, 64});
    b->Args({isa, f16, 128, 2, 4096, 256});
  }
}
BENCHMARK(attention)->Apply(attention_arguments)->Unit(benchmark::kMicrosecond)->MinTime(0.2);

// One large array read once per iteration.
void read_peak(benchmark::State& state) {
  auto memory = AlignedBuffer::allocate(std::size_t{256} << 20);
  if (!memory) return state.SkipWithError("no memory");
  auto* words = memory->as<std::uint64_t>();
  const std::size_t count = memory->size() / 8;
  std::fill_n(words, count, 1);
  for (auto _ : state) {
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i < count; i += 8) {
      for (std::size_t j = 0; j < 8; ++j) sum[j] += words[i + j];
    }
    benchmark::DoNotOptimize(sum);
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(memory->size()) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(read_peak)->Unit(benchmark::kMillisecond);

// Arguments: isa, chunked, value heads, rows, copies of the state gone through in turn.
void gated_delta(benchmark::State& state) {
  const Isa isa = static_cast<Isa>(state.range(0));
  if (unavailable(state, isa)) return;
  const bool chunked = state.range(1) != 0;
  const int heads = static_cast<int>(state.range(2)), rows = static_cast<int>(state.range(3));
  const std::int64_t copies = state.range(4);
  constexpr int kDim = 128;
  const std::int64_t width = static_cast<std::int64_t>(heads) * kDim;
  auto q = random(rows * width), k = random(rows * width);
  normalize(&q, kDim);
  normalize(&k, kDim);
  const auto v = random(rows * width);
  const std::vector<float> g(index(rows * heads), -0.05f), beta(g.size(), 0.5f);
  std::vector<float> out(v.size());
  auto memory = AlignedBuffer::allocate(index(copies * width * kDim) * sizeof(float));
  if (!memory) return state.SkipWithError("no memory");
  std::fill_n(memory->as<float>(), copies * width * kDim, 0.0f);
  std::vector<float> scratch(delta_chunk_scratch_floats(kDim, kDim));
  const DeltaKernels& kernels = delta_kernels(isa);
  std::int64_t copy = 0;
  for (auto _ : state) {
    for (int h = 0; h < heads; ++h) {
      DeltaTask task;
      task.dim_k = task.dim_v = kDim;
      task.rows = rows;
      task.q = q.data() + h * kDim;
      task.k = k.data() + h * kDim;
      task.v = v.data() + h * kDim;
      task.q_stride = task.k_stride = task.v_stride = task.out_stride = width;
      task.g = g.data() + h;
      task.beta = beta.data() + h;
      task.gate_stride = heads;
      task.q_scale = 0.088f;
      task.state = memory->as<float>() + (copy * heads + h) * kDim * kDim;
      task.out = out.data() + h * kDim;
      if (chunked) {
        kernels.chunked(task, scratch.data());
      } else {
        kernels.recurrent(task);
      }
    }
    copy = (copy + 1) % copies;
    benchmark::DoNotOptimize(out.data());
  }
  using benchmark::Counter;
  state.counters["s/token"] = Counter(rows, Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.counters["state GB/s"] =
      Counter(static_cast<double>(width) * kDim * 8e-9, Counter::kIsIterationInvariantRate);
  state.SetLabel(isa_name(isa));
}

void delta_arguments(benchmark::internal::Benchmark* b) {
  for (const int isa : {2, 1, 0}) {
    for (const int chunked : {0, 1}) {
      for (const int heads : {16, 32}) {
        for (const int rows : {1, 8, 64, 512}) b->Args({isa, chunked, heads, rows, 1});
      }
    }
    b->Args({isa, 0, 32, 1, 60});  // from memory: 120 MiB of states
  }
}
BENCHMARK(gated_delta)->Apply(delta_arguments)->Unit(benchmark::kMicrosecond)->MinTime(0.1);

}  // namespace
}  // namespace tessera::cpu

BENCHMARK_MAIN();
