// The first half of the chunked gated delta rule: what needs no state, for all chunks and heads at
// once (delta_chunked.cu has the formulas).
#pragma once

#include "device/gpu/kernels/gated_delta.cuh"
#include "device/gpu/kernels/shared_memory.cuh"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {
namespace {

constexpr int kChunk = kDeltaChunk;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPad = 8;  // halves between rows in shared memory, against bank conflicts

// What goes from one kernel to the other.
// Per head and row: W, U, the scaled Q and K [D] each, P [64]; the chunk's decay at its first row.
struct Prepared {
  __half *w, *u, *q, *k, *p;
  float* decay;
};
__host__ __device__ inline Prepared prepared_at(void* memory, std::int64_t rows, int heads, int d) {
  const std::int64_t cells = rows * heads;
  auto* at = static_cast<__half*>(memory);
  Prepared out;
  out.w = at;
  out.u = out.w + cells * d;
  out.q = out.u + cells * d;
  out.k = out.q + cells * d;
  out.p = out.k + cells * d;
  out.decay = reinterpret_cast<float*>(out.p + cells * kChunk);
  return out;
}

template <int D>
struct PrepareShared {
  __half k[kChunk][D + kPad];
  __half q[kChunk][D + kPad];
  __half v[kChunk][D + kPad];
  __half t[kChunk][kChunk + kPad];  // T with its columns scaled
  float a[kChunk][kChunk + 1];
  float inverse[kChunk][kChunk + 1];
  float gate[kChunk];  // G
  float beta[kChunk];
};

// Rows of q and k, l2-normed, and of v as halves; zeros past the end.
template <int D>
__device__ void load_chunk(const DeltaArgs& args, const DeltaShape& s, const float* conv, int head,
                           std::int64_t first_row, int rows, PrepareShared<D>& m) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int key = key_head_of(s, head) * D, keys = s.key_heads * D;
  // Several rows at a time, so that their reads wait together.
  constexpr int kRows = 4, kParts = D / kWarp;
#pragma unroll 1
  for (int group = 0; group < kChunk; group += kRows * kWarps) {
    float q[kRows][kParts], k[kRows][kParts], v[kRows][kParts];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = group + r * kWarps + warp;
      const float* from = conv + (first_row + row) * s.channels;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const int c = i * kWarp + lane;
        q[r][i] = row < rows ? from[key + c] : 0.0f;
        k[r][i] = row < rows ? from[keys + key + c] : 0.0f;
        v[r][i] = row < rows ? from[2 * keys + head * D + c] : 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = group + r * kWarps + warp;
      float qq = 0, kk = 0;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        qq = fmaf(q[r][i], q[r][i], qq);
        kk = fmaf(k[r][i], k[r][i], kk);
      }
      const float q_factor = 1.0f / sqrtf(warp_sum(qq) + kL2Eps);
      const float k_factor = 1.0f / sqrtf(warp_sum(kk) + kL2Eps);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        m.q[row][i * kWarp + lane] = to_half(q[r][i] * q_factor);
        m.k[row][i * kWarp + lane] = to_half(k[r][i] * k_factor);
        m.v[row][i * kWarp + lane] = to_half(v[r][i]);
      }
    }
  }
}

// G and beta of the chunk's rows; rows past the end decay nothing and write nothing.
__device__ __forceinline__ void load_gates(const DeltaArgs& args, const DeltaShape& s, int head,
                                           std::int64_t first_row, int rows, float* gate,
                                           float* beta) {
  const int row = static_cast<int>(threadIdx.x);
  if (row < kChunk) {
    float g = 0.0f, b = 0.0f;
    if (row < rows) {
      const std::int64_t at = (first_row + row) * s.value_heads + head;
      g = args.a[head] * softplus(args.alpha[at] + args.dt_bias[head]);
      b = sigmoid(args.beta_logits[at]);
    }
    // The sum over the rows before it in its warp; then the second warp adds the first's.
    const int lane = row % kWarp;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const float before = shuffle(g, lane - step);
      if (lane >= step) g += before;
    }
    gate[row] = g;
    beta[row] = b;
  }
  __syncthreads();
  const float first_warp = gate[kWarp - 1];
  __syncthreads();
  if (row >= kWarp && row < kChunk) gate[row] += first_warp;
  __syncthreads();
}

// A (strictly below the diagonal) into m.a and P to memory. Warp w: rows 16w .. 16w + 15.
template <int D>
__device__ void key_products(PrepareShared<D>& m, float q_scale, int rows, __half* p) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int n = 0; n < kChunk; n += 16) {
    float kk[2][4] = {}, qk[2][4] = {};
#pragma unroll
    for (int c = 0; c < D; c += 16) {
      std::uint32_t k[4], q[4], b[4];
      load_rows(k, &m.k[16 * warp][c], D + kPad);
      load_rows(q, &m.q[16 * warp][c], D + kPad);
      load_right_transposed(b, &m.k[n][c], D + kPad);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply_f16(kk[half], k, b[2 * half], b[2 * half + 1]);
        multiply_f16(qk[half], q, b[2 * half], b[2 * half + 1]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * warp + g + i / 2 * 8, column = n + 8 * half + 2 * t + i % 2;
        // Above the diagonal the exponent would be positive.
        const float decay = column <= row ? expf(m.gate[row] - m.gate[column]) : 0.0f;
        m.a[row][column] = column < row ? m.beta[row] * decay * kk[half][i] : 0.0f;
        if (row < rows) p[row * kChunk + column] = to_half(q_scale * decay * qk[half][i]);
      }
  }
}

// inverse = (1 + a)^-1; thread j solves for column j.
template <int D>
__device__ void invert(PrepareShared<D>& m) {
  const int column = static_cast<int>(threadIdx.x);
  if (column < kChunk) {
    float x[kChunk];
#pragma unroll
    for (int row = 0; row < kChunk; ++row) {
      float sum[4] = {row == column ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < row; ++i) sum[i % 4] = fmaf(-m.a[row][i], x[i], sum[i % 4]);
      x[row] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      m.inverse[row][column] = x[row];
    }
  }
}

// out = (inverse with column i times factor_i) * right, rows of the chunk only.
template <int D, typename Factor>
__device__ void solve(PrepareShared<D>& m, const __half (&right)[kChunk][D + kPad], Factor factor,
                      int rows, __half* out) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kChunk; i += kThreads) {
    const int row = i / kChunk, column = i % kChunk;
    m.t[row][column] = to_half(m.inverse[row][column] * factor(column));
  }
  __syncthreads();
#pragma unroll 1
  for (int n = 0; n < D; n += 16) {
    float sum[2][4] = {};
#pragma unroll
    for (int k = 0; k < kChunk; k += 16) {
      std::uint32_t a[4], b[4];
      load_rows(a, &m.t[16 * warp][k], kChunk + kPad);
      load_right(b, &right[k][n], D + kPad);
#pragma unroll
      for (int half = 0; half < 2; ++half) multiply_f16(sum[half], a, b[2 * half], b[2 * half + 1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = 16 * warp + g + 8 * upper;
        if (row < rows)
          *reinterpret_cast<std::uint32_t*>(out + row * D + n + 8 * half + 2 * t) =
              two_halves(sum[half][2 * upper], sum[half][2 * upper + 1]);
      }
  }
}

// Grid: chunks of the longest sequence, value heads, sequences.
template <int D>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const TESSERA_GRID_CONSTANT DeltaArgs args, const float* conv, void* memory) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  auto& m = *reinterpret_cast<PrepareShared<D>*>(shared);
  chain_wait();
  chain_trigger();
  const DeltaShape s = shape_of(args.spec);
  const Sequence sequence = args.step.sequences[blockIdx.z];
  const int head = static_cast<int>(blockIdx.y);
  const int before = static_cast<int>(blockIdx.x) * kChunk;
  if (before >= sequence.n_rows) return;
  const int rows = min(kChunk, sequence.n_rows - before);
  const std::int64_t first = sequence.first_row + before;
  const Prepared all = prepared_at(memory, args.step.rows, s.value_heads, D);
  const std::int64_t cell = static_cast<std::int64_t>(head) * args.step.rows + first;

  load_chunk(args, s, conv, head, first, rows, m);
  load_gates(args, s, head, first, rows, m.gate, m.beta);
  const float q_scale = 1.0f / sqrtf(static_cast<float>(D));
  key_products(m, q_scale, rows, all.p + cell * kChunk);
  __syncthreads();
  invert(m);
  solve(
      m, m.v, [&](int i) { return m.beta[i]; }, rows, all.u + cell * D);
  solve(
      m, m.k, [&](int i) { return m.beta[i] * expf(m.gate[i]); }, rows, all.w + cell * D);
  const float last = m.gate[kChunk - 1];
  for (int i = static_cast<int>(threadIdx.x); i < rows * D; i += kThreads) {
    const int row = i / D, c = i % D;
    all.q[cell * D + i] = to_half(__half2float(m.q[row][c]) * q_scale * expf(m.gate[row]));
    all.k[cell * D + i] = to_half(__half2float(m.k[row][c]) * expf(last - m.gate[row]));
  }
  if (threadIdx.x == 0) all.decay[cell] = expf(last);
}

}  // namespace
}  // namespace tessera::gpu
