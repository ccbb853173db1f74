// The right-hand side of a decode product in shared memory: rows normed as asked, rounded to signed
// bytes per 32 columns (x ~ scale * q, scale = max|x| / 127), and as f32 where plain weights want
// them.
//
// Every row is summed in an order that its width alone fixes. A group with an infinity or a NaN
// gets the scale NaN and zeros.
#pragma once

#include "device/gpu/kernels/formats.cuh"

namespace tessera::gpu {

inline constexpr int kDecodeThreads = 512;
inline constexpr int kDecodeWarps = kDecodeThreads / kWarp;

// Where kCols rows of `cols` columns stand, padded to tiles of 64. Counted in bytes from `base`.
struct StagedLayout {
  int padded = 0;    // columns
  int q_stride = 0;  // bytes from row to row: a shift of four banks
  int factors = 0;  // offset of f32 [3][groups][kCols]: scale, scaled sums of columns 0..15, 16..31
  int floats = 0;   // offset of f32 [kCols][padded]
  int bytes = 0;
};
__host__ __device__ inline StagedLayout staged_layout(int cols, int n_cols, bool bytes_too,
                                                      bool floats_too) {
  StagedLayout at;
  at.padded = (cols + kTileCols - 1) / kTileCols * kTileCols;
  at.q_stride = at.padded + 16;
  at.factors = bytes_too ? at.q_stride * n_cols : 0;
  at.floats = at.factors + (bytes_too ? at.padded / 32 * 3 * n_cols * 4 : 0);
  at.bytes = at.floats + (floats_too ? at.padded * n_cols * 4 : 0);
  return at;
}

template <int kCols>
struct Staged {
  const char* q;
  const float* factors;
  const float* floats;
  int q_stride;
  int groups;
  int padded;
  int n;  // valid columns

  __device__ Staged(const char* base, const StagedLayout& at, int n_rows)
      : q(base),
        factors(reinterpret_cast<const float*>(base + at.factors)),
        floats(reinterpret_cast<const float*>(base + at.floats)),
        q_stride(at.q_stride),
        groups(at.padded / 32),
        padded(at.padded),
        n(n_rows) {}
};

__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + expf(-x));
}
// With the fast exponential and division, for what becomes a half.
__device__ __forceinline__ float quick_silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}
// The factor that the gate's value `z` makes of an element (gated_rms).
__device__ __forceinline__ float open_gate(const Input& in, float z) {
  return in.gate_open ? z : silu(z);
}
__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float softplus(float x) {
  return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
}
__device__ __forceinline__ float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}
__device__ __forceinline__ float activated(Activation kind, float gate, float up) {
  return (kind == Activation::silu ? silu(gate) : gelu_tanh(gate)) * up;
}

// Of what becomes a half.
__device__ __forceinline__ float quickly_activated(Activation kind, float gate, float up) {
  return (kind == Activation::silu ? quick_silu(gate) : gelu_tanh(gate)) * up;
}

__device__ __forceinline__ float4 four_at(const float* at) {
  return *reinterpret_cast<const float4*>(at);
}
__device__ __forceinline__ float sum_squares(float4 v) {
  return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
}

// Rounds four columns of a group held by 8 neighbouring lanes and writes them. `column` is that of
// v.x; all 32 lanes take part, those past the padded width write nothing.
template <int kCols>
__device__ __forceinline__ void stage_four(char* base, const StagedLayout& at, int row, int column,
                                           float4 v) {
  const auto bits = [](float x) { return __float_as_uint(x) & 0x7fffffffu; };
  unsigned top = max(max(bits(v.x), bits(v.y)), max(bits(v.z), bits(v.w)));
#pragma unroll
  for (int mask = 4; mask > 0; mask /= 2) top = max(top, shuffle_xor(top, mask));
  const float peak = __uint_as_float(top);
  const bool broken = top >= 0x7f800000u;
  const bool tiny = peak < 7.52316385e-37f;  // 2^-120
  const float inverse = broken || tiny ? 0.0f : 127.0f / peak;
  float scale = tiny ? 0.0f : peak / 127.0f;
  if (broken) scale = __uint_as_float(0x7fc00000u);
  const auto level = [&](float x) { return broken ? 0 : __float2int_rn(x * inverse); };
  const int a = level(v.x), b = level(v.y), c = level(v.z), d = level(v.w);
  int sum = a + b + c + d;
  sum += shuffle_xor(sum, 1);
  sum += shuffle_xor(sum, 2);
  if (column >= at.padded) return;
  *reinterpret_cast<std::uint32_t*>(base + row * at.q_stride + column) =
      (a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | static_cast<unsigned>(d & 255) << 24;
  float* factors = reinterpret_cast<float*>(base + at.factors);
  const int groups = at.padded / 32, group = column / 32;
  const float scaled = scale * static_cast<float>(sum);
  if (column % 32 == 0) {
    factors[group * kCols + row] = scale;
    factors[(groups + group) * kCols + row] = scaled;
  } else if (column % 32 == 16) {
    factors[(2 * groups + group) * kCols + row] = scaled;
  }
}

__device__ __forceinline__ const float* input_row(const Input& in, int row) {
  const int id = in.row_ids == nullptr ? row : in.row_ids[row];
  return in.x + id * in.stride;
}

// One factor a row (rms_norm) or a row and head (gated_rms): 1 / rms, by one warp each. `inverse`
// is shared memory, n_cols * max(1, heads) floats. Ends with a barrier.
__device__ inline void inverse_rms(const Input& in, int first, int n, float* inverse) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int width = in.kind == InputKind::rms_norm ? in.cols : in.head_dim;
  const int heads = in.cols / width;
  for (int i = warp; i < n * heads; i += static_cast<int>(blockDim.x) / kWarp) {
    const float* x = input_row(in, first + i / heads) + i % heads * width;
    float sum[2] = {0, 0};
    int c = lane * 4;
#pragma unroll 8
    for (; c + kWarp * 4 < width; c += kWarp * 8) {
      sum[0] += sum_squares(*reinterpret_cast<const float4*>(x + c));
      sum[1] += sum_squares(*reinterpret_cast<const float4*>(x + c + kWarp * 4));
    }
    if (c < width) sum[0] += sum_squares(*reinterpret_cast<const float4*>(x + c));
    const float all = warp_sum(sum[0] + sum[1]);
    if (lane == 0) inverse[i] = inverse_root(all / static_cast<float>(width) + in.eps);
  }
  __syncthreads();
}

// Four normed columns of row first + row.
__device__ __forceinline__ float4 input_four(const Input& in, int first, int row, int column,
                                             const float* x, const float* inverse) {
  float4 v = *reinterpret_cast<const float4*>(x + column);
  if (in.kind == InputKind::plain) return v;
  const bool gated = in.kind == InputKind::gated_rms;
  const int heads = gated ? in.cols / in.head_dim : 1;
  const int head = gated ? column / in.head_dim : 0;
  const float factor = inverse[row * heads + head];
  const float4 w =
      *reinterpret_cast<const float4*>(in.weight + (gated ? column % in.head_dim : column));
  v.x = v.x * factor * w.x, v.y = v.y * factor * w.y;
  v.z = v.z * factor * w.z, v.w = v.w * factor * w.w;
  if (gated) {
    const int id = in.row_ids == nullptr ? first + row : in.row_ids[first + row];
    const float4 z = *reinterpret_cast<const float4*>(in.gate + id * in.gate_stride + column);
    v.x *= open_gate(in, z.x), v.y *= open_gate(in, z.y);
    v.z *= open_gate(in, z.z), v.w *= open_gate(in, z.w);
  }
  return v;
}

// --- Rows of up to 2048 * kFours columns, a thread's share of one in registers ---

// What of the input does not depend on the kernel before: load it ahead of chain_wait().
template <int kFours>
struct EarlyInput {
  float4 weight[kFours];

  __device__ __forceinline__ void load(const Input& in) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int c = (i * kDecodeThreads + static_cast<int>(threadIdx.x)) * 4;
      weight[i] = {0, 0, 0, 0};
      if (in.kind == InputKind::plain || c >= in.cols) continue;
      const int at = in.kind == InputKind::gated_rms ? c % in.head_dim : c;
      weight[i] = *reinterpret_cast<const float4*>(in.weight + at);
    }
  }
};

// Whether rows go this way; head dimensions must be whole powers of two of lanes.
inline bool fits_early(const Input& in, int fours) {
  if (in.cols > fours * kDecodeThreads * 4) return false;
  if (in.kind != InputKind::gated_rms) return true;
  return in.head_dim == 16 || in.head_dim == 32 || in.head_dim == 64 || in.head_dim == 128;
}

template <int kFours>
__device__ __forceinline__ void load_row(const Input& in, int row, float4 (&v)[kFours]) {
  const float* x = input_row(in, row);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int c = (i * kDecodeThreads + static_cast<int>(threadIdx.x)) * 4;
    v[i] = {0, 0, 0, 0};
    if (c < in.cols) v[i] = *reinterpret_cast<const float4*>(x + c);
  }
}

// This warp's part of the row's sum of squares, to `partial`[warp].
template <int kFours>
__device__ __forceinline__ void add_squares(const float4 (&v)[kFours], float* partial) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kFours; ++i) sum += sum_squares(v[i]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = sum;
}

template <int kCols, int kFours>
__device__ __forceinline__ void stage_row(const Input& in, const EarlyInput<kFours>& early,
                                          int first, int row, const float4 (&v)[kFours],
                                          const float* partial, char* base, const StagedLayout& at,
                                          bool bytes_too, bool floats_too) {
  float4 z[kFours];
  if (in.kind == InputKind::gated_rms) {
    const int id = in.row_ids == nullptr ? first + row : in.row_ids[first + row];
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int c = (i * kDecodeThreads + static_cast<int>(threadIdx.x)) * 4;
      z[i] = {0, 0, 0, 0};
      if (c < in.cols) z[i] = *reinterpret_cast<const float4*>(in.gate + id * in.gate_stride + c);
    }
  }
  float factor = 1.0f;
  if (in.kind == InputKind::rms_norm) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) sum += partial[w];
    factor = inverse_root(sum / static_cast<float>(in.cols) + in.eps);
  }
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int c = (i * kDecodeThreads + static_cast<int>(threadIdx.x)) * 4;
    if (c - static_cast<int>(threadIdx.x % kWarp) * 4 >= at.padded) break;  // the whole warp
    float4 y = v[i];
    if (in.kind == InputKind::gated_rms) {
      float sum = sum_squares(y);
      for (int mask = in.head_dim / 8; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
      factor = inverse_root(sum / static_cast<float>(in.head_dim) + in.eps);
      y.x *= open_gate(in, z[i].x), y.y *= open_gate(in, z[i].y);
      y.z *= open_gate(in, z[i].z), y.w *= open_gate(in, z[i].w);
    }
    if (in.kind != InputKind::plain) {
      const float4 w = early.weight[i];
      y.x = y.x * factor * w.x, y.y = y.y * factor * w.y;
      y.z = y.z * factor * w.z, y.w = y.w * factor * w.w;
    }
    if (floats_too && c < at.padded)
      *reinterpret_cast<float4*>(base + at.floats + (row * at.padded + c) * 4) = y;
    if (bytes_too) stage_four<kCols>(base, at, row, c, y);
  }
}

// Stages rows [first, first + n) as stage_input() does. `partial` is shared memory, kCols *
// kDecodeWarps floats. The first row's share may be loaded already.
template <int kCols, int kFours>
__device__ __forceinline__ void stage_early(const Input& in, const EarlyInput<kFours>& early,
                                            float4 (&v)[kFours], int first, int n, char* base,
                                            const StagedLayout& at, bool bytes_too, bool floats_too,
                                            float* partial) {
  if (in.kind == InputKind::rms_norm) {
    add_squares(v, partial);
    if constexpr (kCols > 1)
#pragma unroll 4
      for (int row = 1; row < n; ++row) {
        float4 u[kFours];
        load_row(in, first + row, u);
        add_squares(u, partial + row * kDecodeWarps);
      }
    __syncthreads();
  }
  stage_row<kCols>(in, early, first, 0, v, partial, base, at, bytes_too, floats_too);
  if constexpr (kCols > 1)
#pragma unroll 2
    for (int row = 1; row < n; ++row) {
      float4 u[kFours];
      load_row(in, first + row, u);
      stage_row<kCols>(in, early, first, row, u, partial + row * kDecodeWarps, base, at, bytes_too,
                       floats_too);
    }
  __syncthreads();
}

// Stages rows [first, first + n). `scratch` is shared memory, staged_scratch_floats floats. Ends
// with a barrier. in.cols is a multiple of 32.
__host__ __device__ inline int staged_scratch_floats(const Input& in, int n_cols) {
  const int heads = in.kind == InputKind::gated_rms ? in.cols / in.head_dim : 1;
  return n_cols * (heads > kDecodeWarps ? heads : kDecodeWarps);
}
template <int kCols>
__device__ void stage_input(const Input& in, int first, int n, char* base, const StagedLayout& at,
                            bool bytes_too, bool floats_too, float* scratch) {
  if (in.kind != InputKind::plain) inverse_rms(in, first, n, scratch);
  // Whole warps go round together: their lanes exchange what a group of 32 columns has in common.
  const int fours = (at.padded / 4 + kWarp - 1) / kWarp * kWarp;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < n * fours; i += kDecodeThreads) {
    const int row = i / fours, c = i % fours * 4;
    float4 v = {0, 0, 0, 0};
    if (c < in.cols) v = input_four(in, first, row, c, input_row(in, first + row), scratch);
    if (floats_too && c < at.padded)
      *reinterpret_cast<float4*>(base + at.floats + (row * at.padded + c) * 4) = v;
    if (bytes_too) stage_four<kCols>(base, at, row, c, v);
  }
  __syncthreads();
}

}  // namespace tessera::gpu
