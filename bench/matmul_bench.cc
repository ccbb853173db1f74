// Matrix products of the CPU device: GB/s of weights for few rows, GOPS for many.
//
//   matmul_bench                                    all of it
//   matmul_bench --benchmark_filter='Q4_K|peak'     one type and the machine's limits
//
// "read" and "peak" are what this core does when it only reads, or only multiplies: the roofs that
// the other lines are compared with. A product goes through enough copies of its matrix that each
// weight comes from memory. One thread; threads share a product by groups without touching.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/buffer.h"
#include "device/cpu/matmul.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kStreamBytes = 256 << 20;

AlignedBuffer filled(std::int64_t bytes) {
  AlignedBuffer buffer = *AlignedBuffer::allocate(static_cast<std::size_t>(bytes));
  std::memset(buffer.data(), 1, buffer.size());
  return buffer;
}

void set_rates(benchmark::State& state, double bytes, double operations) {
  const auto runs = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(runs * bytes * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GOPS"] =
      benchmark::Counter(runs * operations * 1e-9, benchmark::Counter::kIsRate);
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vnni"))) void multiply_only(std::int64_t rounds) {
  __m512i a = _mm512_set1_epi32(3), b = a, c = a, d = a, e = a, f = a, g = a, h = a;
  __m512i x = _mm512_set1_epi32(5);
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(x));
    a = _mm512_dpbusd_epi32(a, x, x);
    b = _mm512_dpbusd_epi32(b, x, x);
    c = _mm512_dpbusd_epi32(c, x, x);
    d = _mm512_dpbusd_epi32(d, x, x);
    e = _mm512_dpbusd_epi32(e, x, x);
    f = _mm512_dpbusd_epi32(f, x, x);
    g = _mm512_dpbusd_epi32(g, x, x);
    h = _mm512_dpbusd_epi32(h, x, x);
  }
  asm volatile("" ::"v"(a), "v"(b), "v"(c), "v"(d), "v"(e), "v"(f), "v"(g), "v"(h));
}

void peak(benchmark::State& state) {
  constexpr std::int64_t kRounds = 1 << 20;
  for (auto _ : state) multiply_only(kRounds);
  set_rates(state, 0, static_cast<double>(kRounds) * 8 * 64 * 2);
}

__attribute__((target("avx512f"))) void read_only(const std::byte* data, std::int64_t bytes) {
  __m512i sum[4] = {};
  for (std::int64_t i = 0; i < bytes; i += 256) {
    for (int j = 0; j < 4; ++j) {
      __builtin_prefetch(data + i + 64 * j + 4096);
      sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(data + i + 64 * j));
    }
  }
  asm volatile("" ::"v"(sum[0]), "v"(sum[1]), "v"(sum[2]), "v"(sum[3]));
}

void read(benchmark::State& state) {
  const AlignedBuffer buffer = filled(kStreamBytes);
  for (auto _ : state) read_only(buffer.data(), kStreamBytes);
  set_rates(state, static_cast<double>(kStreamBytes), 0);
}
#endif

struct Product {
  BlockType type;
  std::int64_t rows, cols;
  int n;
  Isa isa;
};

void product(benchmark::State& state, Product p) {
  const std::int64_t stride = row_bytes(p.type, p.cols),
                     bytes = packed_bytes(p.type, p.rows, p.cols);
  const std::int64_t copies = std::max<std::int64_t>(1, kStreamBytes / bytes);
  std::vector<std::byte> file(static_cast<std::size_t>(p.rows * stride));
  random_blocks(p.type, 1, 0, p.rows * p.cols / block_format(p.type).elems, 1.0f, file.data());
  AlignedBuffer packed = *AlignedBuffer::allocate(static_cast<std::size_t>(copies * bytes));
  for (std::int64_t i = 0; i < copies; ++i) {
    pack_groups({p.type, p.rows, p.cols, file.data(), stride}, {0, group_count(p.rows)},
                packed.data() + i * bytes);
  }
  std::vector<float> rows(static_cast<std::size_t>(p.n * p.cols));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(i * 7919 % 201) * 0.01f - 1.0f;
  }
  AlignedBuffer records = filled(activation_bytes(p.n, p.cols));
  const Activations x{rows.data(), p.cols, p.n, p.cols, records.as<ActivationRecord>()};
  const MatmulKernels& kernels = matmul_kernels(p.isa);
  quantize_rows(kernels, x, 0, p.n);
  std::vector<float> out(static_cast<std::size_t>(p.n * p.rows));
  std::int64_t copy = 0;
  for (auto _ : state) {
    const PackedMatrix w(p.type, p.rows, p.cols, packed.data() + copy * bytes);
    matmul(kernels, w, {0, w.groups()}, x, {}, p.n, out.data(), p.rows);
    benchmark::ClobberMemory();
    copy = (copy + 1) % copies;
  }
  set_rates(state, static_cast<double>(bytes), 2.0 * static_cast<double>(p.n * p.rows * p.cols));
}

// How the weights of a file are used.
enum class FileUse { packed_only, packed_first, as_they_lie, packed_before };

// As the experts of a file are used: pieces of 4 groups from all over it, each multiplied with `n`
// rows as it lies there, or packed into one room first; or as if all of it had been packed before.
void from_file(benchmark::State& state, BlockType type, int n, FileUse use) {
  constexpr std::int64_t kCols = 2048, kGroups = 4, kPieceRows = kGroups * kGroupRows;
  const std::int64_t stride = row_bytes(type, kCols), piece = kPieceRows * stride;
  const std::int64_t pieces = kStreamBytes / piece;
  const AlignedBuffer file = filled(pieces * piece);
  AlignedBuffer room = filled(packed_bytes(type, kPieceRows, kCols));
  std::vector<float> rows(static_cast<std::size_t>(n * kCols), 0.5f);
  AlignedBuffer records = filled(activation_bytes(n, kCols));
  const Activations x{rows.data(), kCols, n, kCols, records.as<ActivationRecord>()};
  const MatmulKernels& kernels = matmul_kernels(detect_isa());
  quantize_rows(kernels, x, 0, n);
  std::vector<float> out(static_cast<std::size_t>(n * kPieceRows));
  const PackedMatrix w(type, kPieceRows, kCols, room.data());
  std::int64_t at = 0;
  for (auto _ : state) {
    const MatrixSource source{type, kPieceRows, kCols, file.data() + at * piece, stride};
    if (use == FileUse::packed_only || use == FileUse::packed_first)
      pack_groups(source, {0, kGroups}, room.data());
    if (use == FileUse::packed_first)
      matmul(kernels, w, {0, kGroups}, x, {}, n, out.data(), kPieceRows);
    if (use == FileUse::as_they_lie)
      matmul(kernels, source, {0, kGroups}, x, {}, n, out.data(), kPieceRows);
    if (use == FileUse::packed_before)
      matmul(kernels, PackedMatrix(type, kPieceRows, kCols, source.data), {0, kGroups}, x, {}, n,
             out.data(), kPieceRows);
    benchmark::ClobberMemory();
    at = (at + 7919) % pieces;
  }
  const double products = use == FileUse::packed_only ? 0 : static_cast<double>(n);
  set_rates(state, static_cast<double>(piece),
            2.0 * products * static_cast<double>(kPieceRows * kCols));
}

void register_from_file(BlockType type) {
  const auto add = [=](std::string_view what, int n, FileUse use) {
    benchmark::RegisterBenchmark(
        fmt::format("from_file/{}/{}/{}", block_type_name(type), what, n).c_str(),
        [=](benchmark::State& state) { from_file(state, type, n, use); });
  };
  add("packed_only", 1, FileUse::packed_only);
  for (const int n : {1, 4, 16, 128}) {
    add("packed_first", n, FileUse::packed_first);
    add("packed_before", n, FileUse::packed_before);
    if (reads_file(type)) add("as_they_lie", n, FileUse::as_they_lie);
  }
}

void quantize(benchmark::State& state) {
  constexpr std::int64_t kRows = 64, kCols = 2048;
  const AlignedBuffer rows = filled(kRows * kCols * 4);
  AlignedBuffer records = filled(activation_bytes(kRows, kCols));
  const Activations x{rows.as<float>(), kCols, kRows, kCols, records.as<ActivationRecord>()};
  for (auto _ : state) quantize_rows(matmul_kernels(detect_isa()), x, 0, kRows);
  set_rates(state, static_cast<double>(kRows * kCols * 4), 0);
}

void register_all() {
#if defined(__x86_64__)
  if (isa_supported(Isa::avx512)) {
    benchmark::RegisterBenchmark("peak", peak);
    benchmark::RegisterBenchmark("read", read);
  }
#endif
  benchmark::RegisterBenchmark("quantize", quantize);
  for (const BlockType type :
       {BlockType::Q4_K, BlockType::Q6_K, BlockType::Q8_0, BlockType::BF16, BlockType::F32}) {
    const std::string name = block_type_name(type);
    register_from_file(type);
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::portable}) {
      if (!isa_supported(isa)) continue;
      for (const std::int64_t rows : {2048, 512}) {
        for (const int n : {1, 4, 16, 64, 128}) {
          const Product p{type, rows, 2048, n, isa};
          benchmark::RegisterBenchmark(
              fmt::format("{}/{}/{}x2048/{}", name, isa_name(isa), rows, n).c_str(),
              [=](benchmark::State& state) { product(state, p); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  tessera::cpu::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
