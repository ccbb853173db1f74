// What the benchmarks of the kernels share: random weights on the device, the rows of a step, the
// time of a captured graph.
#pragma once

#include <chrono>
#include <memory>

#include "harness.h"

namespace tessera::gpu::bench {

// Random repacked matrices. A few rows are made once for each type and width and stand again and
// again: the time does not depend on the values.
class Source {
 public:
  Matrix make(BlockType type, int rows, int cols) {
    std::byte* data = nullptr;
    GPU_OK(cudaMalloc(&data, std::size_t(plane_layout(type, rows, cols).bytes)));
    fill(data, type, rows, cols);
    return {type, rows, cols, data};
  }
  void fill(std::byte* to, BlockType type, int rows, int cols) {
    if (is_plain(type))
      return copy(to, piece_of(type, rows, cols), 0, plane_layout(type, rows, cols).bytes);
    const int tiles = int(row_tiles(rows)), each = most_divisor(tiles);
    const TestMatrix& piece = piece_of(type, each * kTileRows, cols);
    const PlaneLayout from = plane_layout(type, each * kTileRows, cols);
    const PlaneLayout whole = plane_layout(type, rows, cols);
    const std::int64_t supers = (cols + kSuperCols - 1) / kSuperCols;
    for (int i = 0; i < tiles / each; ++i) {
      const auto plane = [&](std::int64_t at, std::int64_t source, std::int64_t row_tile) {
        copy(to + at + i * each * row_tile, piece, source, each * row_tile);
      };
      plane(whole.quants, from.quants, from.col_tiles * from.quant_bytes);
      plane(whole.extra, from.extra, from.col_tiles * from.extra_bytes);
      plane(whole.scales, from.scales, from.col_tiles * from.scale_bytes);
      plane(whole.supers, from.supers, supers * from.super_bytes);
    }
  }

 private:
  static int most_divisor(int tiles) {
    int each = std::min(tiles, 160);
    while (tiles % each != 0) --each;
    return each;
  }
  static void copy(std::byte* to, const TestMatrix& piece, std::int64_t from, std::int64_t bytes) {
    if (bytes > 0)
      GPU_OK(
          cudaMemcpy(to, piece.planes.data() + from, std::size_t(bytes), cudaMemcpyDeviceToDevice));
  }
  const TestMatrix& piece_of(BlockType type, int rows, int cols) {
    for (const auto& m : pieces_)
      if (m->matrix.type == type && m->matrix.rows == rows && m->matrix.cols == cols) return *m;
    pieces_.push_back(std::make_unique<TestMatrix>(type, rows, cols, pieces_.size() + 1, false));
    return *pieces_.back();
  }

  std::vector<std::unique_ptr<TestMatrix>> pieces_;
};

inline float* floats(std::size_t n, float stddev, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> host(std::min<std::size_t>(n, 65536));
  for (float& x : host) x = random.normal() * stddev;
  float* data = nullptr;
  GPU_OK(cudaMalloc(&data, n * sizeof(float)));
  for (std::size_t at = 0; at < n; at += host.size())
    GPU_OK(cudaMemcpy(data + at, host.data(), std::min(host.size(), n - at) * sizeof(float),
                      cudaMemcpyHostToDevice));
  return data;
}

struct Step {
  Step(int rows, int context, bool prompt)
      : table_rows(prompt ? 1 : rows),
        test(prompt ? std::vector<int>{rows} : std::vector<int>(std::size_t(rows), 1),
             std::vector<int>(std::size_t(prompt ? 1 : rows), context)),
        context(context + (prompt ? rows : 1)) {
    pages_a_row = (this->context + 63) / 64;
    std::vector<std::int32_t> host;
    for (int r = 0; r < table_rows; ++r)
      for (int p = 0; p < pages_a_row; ++p) host.push_back(p);  // all read the same pages
    table = DeviceArray<std::int32_t>(host);
  }
  int table_rows;
  TestRows test;
  int context, pages_a_row;
  DeviceArray<std::int32_t> table;
};

// What `work` enqueues, to be replayed.
class Replays {
 public:
  template <typename F>
  Replays(GpuStream stream, F work) : stream_(stream) {
    GPU_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    work();
    GPU_OK(cudaStreamEndCapture(stream_, &graph_));
    GPU_OK(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  Replays(const Replays&) = delete;
  ~Replays() {
    (void)cudaGraphExecDestroy(exec_);
    (void)cudaGraphDestroy(graph_);
  }
  void launch() { GPU_OK(cudaGraphLaunch(exec_, stream_)); }

 private:
  GpuStream stream_;
  cudaGraph_t graph_;
  cudaGraphExec_t exec_;
};
// Median microseconds of one replay of what `work` enqueues; `before` each, not counted, comes what
// puts the inputs back that `work` changes.
template <typename F>
double median_us(
    GpuStream stream, F work, int repeats = 15, const std::function<void()>& before = [] {}) {
  Replays replays(stream, work);
  cudaEvent_t from, to;
  GPU_OK(cudaEventCreate(&from));
  GPU_OK(cudaEventCreate(&to));
  std::vector<float> times;
  for (int i = 0; i < repeats + 2; ++i) {
    before();
    GPU_OK(cudaEventRecord(from, stream));
    replays.launch();
    GPU_OK(cudaEventRecord(to, stream));
    GPU_OK(cudaEventSynchronize(to));
    float ms = 0;
    GPU_OK(cudaEventElapsedTime(&ms, from, to));
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  return double(times[times.size() / 2]) * 1000;
}

// Mean microseconds of one replay while pairs of them follow each other for `seconds`: what a card
// at its limit of power does. The second half counts, by when it is there.
template <typename F>
double lasting_us(GpuStream stream, F work, double seconds) {
  Replays replays(stream, work);
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const auto pair = [&] {
    replays.launch();
    replays.launch();
    GPU_OK(cudaStreamSynchronize(stream));
  };
  for (const Clock::time_point begin = Clock::now(); 2 * since(begin) < seconds;) pair();
  int counted = 0;
  const Clock::time_point begin = Clock::now();
  do {
    pair();
    counted += 2;
  } while (2 * since(begin) < seconds);
  return since(begin) * 1e6 / counted;
}

inline void print_reads(const char* name, int rows, double us, double bytes) {
  std::printf("%-34s rows %5d  %9.2f us  %7.0f GB/s     %5.1f%% of 4600\n", name, rows, us,
              bytes / us * 1e-3, bytes / us * 1e-3 / 46);
  std::fflush(stdout);
}
inline void print_products(const char* name, int rows, double us, double flops) {
  std::printf("%-34s rows %5d  %9.2f us  %7.1f TFLOP/s  %5.1f%% of 790\n", name, rows, us,
              flops / us * 1e-6, flops / us * 1e-6 / 7.9);
  std::fflush(stdout);
}
inline double bytes_of(const Matrix& m) {
  return double(plane_layout(m.type, m.rows, m.cols).bytes);
}

// dense_bench.cu: a dense model of the shape of qwen35 full. `what`: d(ecode), r(uns of one row
// alone), l(asting: runs for 3 s), p(rompts), s: without chained launches.
void bench_dense(int layers, const char* what);
// choose_bench.cu: tokens from logits of one row.
void bench_draws();

}  // namespace tessera::gpu::bench
