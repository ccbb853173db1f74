// What the kernel tests and benchmarks share: device arrays, random numbers, comparison, matrices
// that exist both as f32 on the host and repacked on the device. Needs nothing but the CUDA or HIP
// runtime, so that the programs run on a bare GPU machine.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <algorithm>

#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/portable.h"

namespace tessera::gpu::bench {

inline void require(int error, const char* file, int line, const char* call) {
  if (error == 0) return;
  std::printf("%s:%d: %s: %s\n", file, line, call,
              TESSERA_GPU_API(GetErrorString)(static_cast<TESSERA_GPU_API(Error_t)>(error)));
  std::exit(2);
}
#define GPU_OK(call) ::tessera::gpu::bench::require((call), __FILE__, __LINE__, #call)

// Device memory, filled with bytes 0xff (NaN in every float format) until written.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n = 0) : n_(n) {
    if (n == 0) return;
    GPU_OK(TESSERA_GPU_API(Malloc)(&data_, n * sizeof(T)));
    poison();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { put(values); }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), n_(other.n_) {
    other.data_ = nullptr;
  }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(n_, other.n_);
    return *this;
  }
  ~DeviceArray() {
    if (data_ != nullptr) (void)TESSERA_GPU_API(Free)(data_);
  }
  void poison() { GPU_OK(TESSERA_GPU_API(Memset)(data_, 0xff, n_ * sizeof(T))); }
  void zero() { GPU_OK(TESSERA_GPU_API(Memset)(data_, 0, n_ * sizeof(T))); }
  void put(const std::vector<T>& values) {
    GPU_OK(TESSERA_GPU_API(Memcpy)(data_, values.data(), values.size() * sizeof(T),
                                   TESSERA_GPU_API(MemcpyHostToDevice)));
  }
  std::vector<T> get() const {
    std::vector<T> values(n_);
    GPU_OK(TESSERA_GPU_API(Memcpy)(values.data(), data_, n_ * sizeof(T),
                                   TESSERA_GPU_API(MemcpyDeviceToHost)));
    return values;
  }
  T* data() const { return data_; }
  std::size_t size() const { return n_; }

 private:
  T* data_ = nullptr;
  std::size_t n_ = 0;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  float normal() {
    const float u = std::fmax(uniform(), 1e-9f);
    return std::sqrt(-2 * std::log(u)) * std::cos(6.2831853f * uniform());
  }
  std::vector<float> normals(std::size_t n, float stddev = 1.0f) {
    std::vector<float> out(n);
    for (float& x : out) x = normal() * stddev;
    return out;
  }

 private:
  std::uint64_t state_;
};

// A random matrix: as f32 on the host, repacked on the device.
struct TestMatrix {
  TestMatrix(BlockType type, int rows, int cols, std::uint64_t seed, bool host = true,
             float size = 1.0f)
      : planes(static_cast<std::size_t>(plane_layout(type, rows, cols).bytes)),
        matrix{type, rows, cols, planes.data()} {
    const std::int64_t bytes = row_bytes(type, cols);
    std::vector<std::byte> file(static_cast<std::size_t>(bytes * rows));
    const std::int64_t blocks = std::int64_t{rows} * cols / block_format(type).elems;
    random_blocks(type, seed, 0, blocks, size / std::sqrt(static_cast<float>(cols)), file.data());
    std::vector<std::byte> packed(planes.size(), std::byte{0xff});
    repack_rows(type, file.data(), rows, cols, 0, row_tiles(rows), packed.data());
    planes.put(packed);
    if (!host) return;
    values.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
    for (int r = 0; r < rows; ++r)
      dequantize_row(type, file.data() + r * bytes, cols, values.data() + std::size_t(r) * cols);
  }
  const float* row(int r) const {
    return values.data() + static_cast<std::size_t>(r) * matrix.cols;
  }

  DeviceArray<std::byte> planes;
  Matrix matrix;
  std::vector<float> values;
};

// What the decode kernels make of a row: 8 bits per 32 columns.
inline std::vector<float> rounded(const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (std::size_t i = 0; i < x.size(); i += 32) {
    float top = 0;
    for (std::size_t j = i; j < i + 32; ++j) top = std::fmax(top, std::fabs(x[j]));
    const float scale = top / 127.0f, inverse = top > 0 ? 127.0f / top : 0.0f;
    for (std::size_t j = i; j < i + 32; ++j) out[j] = scale * std::nearbyint(x[j] * inverse);
  }
  return out;
}

inline double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

inline int& failures() {
  static int count = 0;
  return count;
}
inline int& checks() {
  static int count = 0;
  return count;
}

// |got - want| / |want| at most `tolerance`; a NaN never passes.
template <typename Want>
bool compare(const std::string& what, const std::vector<float>& got, const std::vector<Want>& want,
             double tolerance) {
  ++checks();
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    error += difference * difference;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  const double relative = std::sqrt(error / (norm > 0 ? norm : 1));
  if (got.size() >= want.size() && relative <= tolerance) return true;
  ++failures();
  std::printf("FAIL %s: relative error %.3g, at most %.3g allowed\n", what.c_str(), relative,
              tolerance);
  return false;
}

inline void check(const std::string& what, bool ok) {
  ++checks();
  if (ok) return;
  ++failures();
  std::printf("FAIL %s\n", what.c_str());
}

// Other than 0: how many multiprocessors launches are told of, so that small matrices go the way of
// large ones.
inline int& pretended_multiprocessors() {
  static int count = 0;
  return count;
}

// Other than 0: the shared memory that launches are told of, as of a smaller GPU.
inline std::size_t& pretended_shared() {
  static std::size_t bytes = 0;
  return bytes;
}

// Whether launches are told that the GPU has none of what only Hopper has, clusters among it.
inline bool& without_clusters() {
  static bool without = false;
  return without;
}

// A launch over a workspace that is poisoned anew.
struct Runner {
  explicit Runner(std::size_t workspace_bytes) : workspace(workspace_bytes) {
    GPU_OK(TESSERA_GPU_API(StreamCreate)(&launch.stream));
    int device = 0, count = 0;
    GPU_OK(TESSERA_GPU_API(GetDevice)(&device));
#ifdef TESSERA_GPU_HIP
    GPU_OK(hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device));
#else
    GPU_OK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
#endif
    launch.multiprocessors = pretended_multiprocessors() > 0 ? pretended_multiprocessors() : count;
    launch.shared_bytes = pretended_shared();
    launch.chained = compute_major() >= 9;
    launch.gemm = has_gemm() && !without_clusters();
    launch.workspace = workspace.data();
    launch.workspace_bytes = workspace_bytes;
  }
  void sync() {
    GPU_OK(TESSERA_GPU_API(StreamSynchronize)(launch.stream));
  }
  void fresh() {
    workspace.poison();
    GPU_OK(TESSERA_GPU_API(DeviceSynchronize)());
  }

  DeviceArray<std::byte> workspace;
  Launch launch;
};

// One sequence table for `lengths` rows each, starting at `positions`, in slots 0, 1, ...
struct TestRows {
  TestRows(const std::vector<int>& lengths, const std::vector<int>& positions) {
    int row = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      host.push_back({row, lengths[i], positions[i], static_cast<std::int32_t>(i)});
      for (int t = 0; t < lengths[i]; ++t, ++row) {
        position_host.push_back(positions[i] + t);
        sequence_host.push_back(static_cast<std::int32_t>(i));
      }
      step.max_sequence_rows = std::max(step.max_sequence_rows, lengths[i]);
    }
    position = DeviceArray<std::int32_t>(position_host);
    sequence = DeviceArray<std::int32_t>(sequence_host);
    sequences = DeviceArray<Sequence>(host);
    step.rows = row;
    step.n_sequences = static_cast<int>(lengths.size());
    step.position = position.data();
    step.sequence = sequence.data();
    step.sequences = sequences.data();
  }
  std::vector<Sequence> host;
  std::vector<std::int32_t> position_host, sequence_host;
  DeviceArray<std::int32_t> position, sequence;
  DeviceArray<Sequence> sequences;
  StepRows step;
};

inline std::vector<float> rms_normed(const float* x, const float* weight, float eps, int n) {
  const double factor = 1.0 / std::sqrt(dot(x, x, n) / n + static_cast<double>(eps));
  std::vector<float> out(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i)
    out[static_cast<std::size_t>(i)] =
        static_cast<float>(static_cast<double>(x[i]) * factor *
                           (weight == nullptr ? 1.0 : static_cast<double>(weight[i])));
  return out;
}
inline double silu(double x) {
  return x / (1 + std::exp(-x));
}
inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
inline double softplus(double x) {
  return x > 30 ? x : std::log1p(std::exp(x));
}
inline double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
inline double activated(Activation kind, double g, double u) {
  return (kind == Activation::silu ? silu(g) : gelu_tanh(g)) * u;
}

// fn(0) .. fn(n - 1), which keep to places of their own, by all of the host's cores.
inline void in_parallel(int n, const std::function<void(int)>& fn) {
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<std::thread> team;
  for (int first = 0; first < threads; ++first)
    team.emplace_back([=, &fn] {
      for (int i = first; i < n; i += threads) fn(i);
    });
  for (std::thread& thread : team) thread.join();
}

// The families of tests; each prints what failed.
void test_projections();
void test_elementwise();
void test_handover();
void test_attention();
void test_gated_delta();
void test_ffn();
void test_runs();
void test_dense_runs();
void test_together();
void test_choices();

}  // namespace tessera::gpu::bench
