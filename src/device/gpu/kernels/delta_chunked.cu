// The gated delta rule over chunks of 64 rows as matrix products, for prompts.
//
// With G_t the sum of the log decays up to row t of a chunk and S the state before it, the writes
// d_t of the rule solve a triangular system (the WY form):
//
//   (1 + A) D = diag(beta) V - diag(beta e^G) K S,   A_ti = beta_t e^(G_t - G_i) k_t.k_i,  i < t
//   o_t = q_scale (e^G_t q_t' S + sum_{i <= t} e^(G_t - G_i) (q_t.k_i) d_i)
//   S <- e^G_last S + sum_i e^(G_last - G_i) k_i d_i'
//
// prepare_kernel does what no state is needed for, all chunks and heads at once: T = (1 + A)^-1,
// U = T diag(beta) V, W = T diag(beta e^G) K, the masked products P of queries and keys, and both
// scaled by their decays. scan_kernel goes through a head's chunks in order with a slice of S's
// columns in registers: D = U - W S, o = Q S + P D, S <- e^G_last S + K' D. Products take f16
// operands and sum in f32; S stays f32. A row's result depends on its place in the chunk, so on
// where prompts are cut.
//
// Bytes of a row and head of 128: 1.1 KB written and read; 4 x 128 x 128 multiplications a row.
#include "device/gpu/kernels/gated_delta.cuh"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {
namespace {

constexpr int kChunk = kDeltaChunk;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSlice = 32;  // columns of S a block of the scan
constexpr int kPad = 8;     // halves between rows in shared memory, against bank conflicts

__device__ __forceinline__ __half to_half(float x) {
  return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}
__device__ __forceinline__ std::uint32_t two_halves(float a, float b) {
  return as_bits(__halves2half2(to_half(a), to_half(b)));
}

// --- Operands of multiply_f16 from shared memory. `stride` in halves, a multiple of 8. ---

#ifdef TESSERA_GPU_PTX
__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}
#endif

// 16 rows x 16 columns of a row-major matrix.
__device__ __forceinline__ void load_rows(std::uint32_t (&a)[4], const __half* at, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#ifdef TESSERA_GPU_PTX
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(at + lane % 16 * stride + lane / 16 * 8))
               : "memory");
#else
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i)
    a[i] =
        *reinterpret_cast<const std::uint32_t*>(at + (g + i % 2 * 8) * stride + 2 * t + i / 2 * 8);
#endif
}

// The transpose of 16 rows (k) x 16 columns (m) as the left operand.
__device__ __forceinline__ void load_columns(std::uint32_t (&a)[4], const __half* at, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#ifdef TESSERA_GPU_PTX
  const int k = lane % 8 + lane / 16 * 8, m = lane / 8 % 2 * 8;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(at + k * stride + m))
               : "memory");
#else
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const __half* from = at + (2 * t + i / 2 * 8) * stride + g + i % 2 * 8;
    a[i] = as_bits(__halves2half2(from[0], from[stride]));
  }
#endif
}

// Right operands of two tiles of 8 columns: b[0], b[1] of the first, b[2], b[3] of the second.
// From a matrix that holds them row-major, 16 rows (k) x 16 columns (n).
__device__ __forceinline__ void load_right(std::uint32_t (&b)[4], const __half* at, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#ifdef TESSERA_GPU_PTX
  const int k = lane % 8 + lane / 8 % 2 * 8, n = lane / 16 * 8;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(shared_address(at + k * stride + n))
               : "memory");
#else
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const __half* from = at + (2 * t + i % 2 * 8) * stride + g + i / 2 * 8;
    b[i] = as_bits(__halves2half2(from[0], from[stride]));
  }
#endif
}

// From a matrix whose rows are the columns (n): 16 rows (n) x 16 columns (k).
__device__ __forceinline__ void load_right_transposed(std::uint32_t (&b)[4], const __half* at,
                                                      int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#ifdef TESSERA_GPU_PTX
  const int n = lane % 8 + lane / 16 * 8, k = lane / 8 % 2 * 8;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(shared_address(at + n * stride + k))
               : "memory");
#else
  const int g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; ++i)
    b[i] =
        *reinterpret_cast<const std::uint32_t*>(at + (g + i / 2 * 8) * stride + 2 * t + i % 2 * 8);
#endif
}

// --- What goes from one kernel to the other ---

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
  extern __shared__ __align__(16) char shared[];
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

// One chunk in shared memory.
template <int D>
struct ScanStage {
  __half w[kChunk][D + kPad];
  __half q[kChunk][D + kPad];
  __half k[kChunk][D + kPad];
  __half p[kChunk][kChunk + kPad];
  __half u[kChunk][kSlice + kPad];
};
template <int D>
struct ScanShared {
  ScanStage<D> stage[2];
  __half s[D][kSlice + kPad];
  __half d[kChunk][kSlice + kPad];
};

// 16 bytes from memory, or zeros.
__device__ __forceinline__ void fetch(__half* to, const __half* from, bool there) {
#ifdef TESSERA_GPU_PTX
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
#else
  *reinterpret_cast<uint4*>(to) =
      there ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#endif
}
__device__ __forceinline__ void fetch_end() {
#ifdef TESSERA_GPU_PTX
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>
__device__ __forceinline__ void fetch_wait() {
#ifdef TESSERA_GPU_PTX
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

template <int kWidth, int kStride>
__device__ __forceinline__ void fetch_rows(__half (&to)[kChunk][kStride], const __half* from,
                                           int stride, int rows) {
  constexpr int kPieces = kWidth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kPieces; i += kThreads) {
    const int row = i / kPieces, c = i % kPieces * 8;
    const bool there = row < rows;
    fetch(&to[row][c], from + (there ? row : 0) * stride + c, there);
  }
}

template <int D>
__device__ void fetch_chunk(const Prepared& all, std::int64_t cell, int column, int rows,
                            ScanStage<D>& to) {
  fetch_rows<D>(to.w, all.w + cell * D, D, rows);
  fetch_rows<D>(to.q, all.q + cell * D, D, rows);
  fetch_rows<D>(to.k, all.k + cell * D, D, rows);
  fetch_rows<kChunk>(to.p, all.p + cell * kChunk, kChunk, rows);
  fetch_rows<kSlice>(to.u, all.u + cell * D + column, D, rows);
}

// sum[n] += left (16 rows of this warp, k columns) * right [k][kSlice].
template <int kDepth, int kStride>
__device__ __forceinline__ void multiply_slice(float (&sum)[kSlice / 8][4], const __half* left,
                                               int stride, const __half (*right)[kStride]) {
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    std::uint32_t a[4];
    load_rows(a, left + k, stride);
#pragma unroll
    for (int n = 0; n < kSlice; n += 16) {
      std::uint32_t b[4];
      load_right(b, &right[k][n], kStride);
      multiply_f16(sum[n / 8], a, b[0], b[1]);
      multiply_f16(sum[n / 8 + 1], a, b[2], b[3]);
    }
  }
}

// Grid: slices of S's columns, value heads, sequences. Warp w holds rows (of dim_k) [w D/4, ...) of
// S, and computes rows 16w .. 16w + 15 of each chunk.
template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    scan_kernel(const TESSERA_GRID_CONSTANT DeltaArgs args, void* memory) {
  extern __shared__ __align__(16) char shared[];
  auto& m = *reinterpret_cast<ScanShared<D>*>(shared);
  constexpr int kTiles = D / 16 / kWarps;  // of 16 rows of S, a warp
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  chain_wait();
  chain_trigger();
  const DeltaShape s = shape_of(args.spec);
  const Sequence sequence = args.step.sequences[blockIdx.z];
  const int head = static_cast<int>(blockIdx.y), column = static_cast<int>(blockIdx.x) * kSlice;
  const Prepared all = prepared_at(memory, args.step.rows, s.value_heads, D);
  const std::int64_t cells = static_cast<std::int64_t>(head) * args.step.rows + sequence.first_row;
  float* ring = args.state + sequence.slot * args.slot_stride;
  float* state = ring + s.width * s.channels + static_cast<std::int64_t>(head) * D * D;

  float S[kTiles][kSlice / 8][4];
  const auto state_at = [&](int tile, int n, int i) -> float& {
    const int row = (warp * kTiles + tile) * 16 + g + i / 2 * 8;
    return state[(column + 8 * n + 2 * t + i % 2) * D + row];
  };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) S[tile][n][i] = state_at(tile, n, i);

  const int chunks = (sequence.n_rows + kChunk - 1) / kChunk;
  fetch_chunk(all, cells, column, min(kChunk, sequence.n_rows), m.stage[0]);
  fetch_end();
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ScanStage<D>& now = m.stage[chunk % 2];
    const int before = chunk * kChunk;
    const int rows = min(kChunk, sequence.n_rows - before);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
        for (int upper = 0; upper < 2; ++upper)
          *reinterpret_cast<std::uint32_t*>(
              &m.s[(warp * kTiles + tile) * 16 + g + 8 * upper][8 * n + 2 * t]) =
              two_halves(S[tile][n][2 * upper], S[tile][n][2 * upper + 1]);
    if (chunk + 1 < chunks) {
      fetch_chunk(all, cells + before + kChunk, column,
                  min(kChunk, sequence.n_rows - before - kChunk), m.stage[(chunk + 1) % 2]);
      fetch_end();
      fetch_wait<1>();
    } else {
      fetch_wait<0>();
    }
    __syncthreads();

    float sum[kSlice / 8][4] = {};
    multiply_slice<D>(sum, &now.w[16 * warp][0], D + kPad, m.s);
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = 16 * warp + g + 8 * upper, at = 8 * n + 2 * t;
        const float2 u = __half22float2(*reinterpret_cast<const __half2*>(&now.u[row][at]));
        *reinterpret_cast<std::uint32_t*>(&m.d[row][at]) =
            two_halves(u.x - sum[n][2 * upper], u.y - sum[n][2 * upper + 1]);
        sum[n][2 * upper] = sum[n][2 * upper + 1] = 0.0f;
      }
    __syncthreads();

    multiply_slice<D>(sum, &now.q[16 * warp][0], D + kPad, m.s);
    multiply_slice<kChunk>(sum, &now.p[16 * warp][0], kChunk + kPad, m.d);
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = 16 * warp + g + 8 * upper;
        if (row < rows)
          *reinterpret_cast<float2*>(args.out +
                                     (sequence.first_row + before + row) *
                                         static_cast<std::int64_t>(s.value_heads * D) +
                                     head * D + column + 8 * n + 2 * t) =
              make_float2(sum[n][2 * upper], sum[n][2 * upper + 1]);
      }

    const float decay = all.decay[cells + before];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) S[tile][n][i] *= decay;
#pragma unroll
      for (int k = 0; k < kChunk; k += 16) {
        std::uint32_t a[4];
        load_columns(a, &now.k[k][(warp * kTiles + tile) * 16], D + kPad);
#pragma unroll
        for (int n = 0; n < kSlice; n += 16) {
          std::uint32_t b[4];
          load_right(b, &m.d[k][n], kSlice + kPad);
          multiply_f16(S[tile][n / 8], a, b[0], b[1]);
          multiply_f16(S[tile][n / 8 + 1], a, b[2], b[3]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) state_at(tile, n, i) = S[tile][n][i];
  update_ring(args, s, sequence, ring, static_cast<int>(blockIdx.y + gridDim.y * blockIdx.x),
              static_cast<int>(gridDim.x * gridDim.y));
}

template <int D>
GpuError run(const Launch& launch, const DeltaArgs& args, const float* conv, void* memory) {
  const auto heads = static_cast<unsigned>(args.spec.n_value_head);
  const auto sequences = static_cast<unsigned>(args.step.n_sequences);
  const auto chunks = static_cast<unsigned>((args.step.max_sequence_rows + kChunk - 1) / kChunk);
  const GpuError error =
      launch_kernel(launch, prepare_kernel<D>, dim3(chunks, heads, sequences), dim3(kThreads),
                    sizeof(PrepareShared<D>), args, conv, memory);
  if (error != GpuError{}) return error;
  return launch_kernel(launch, scan_kernel<D>, dim3(D / kSlice, heads, sequences), dim3(kThreads),
                       sizeof(ScanShared<D>), args, memory);
}

}  // namespace

GpuError delta_chunked(const Launch& launch, const DeltaArgs& args, const float* conv,
                       void* memory) {
  return args.spec.dim_k == 128 ? run<128>(launch, args, conv, memory)
                                : run<64>(launch, args, conv, memory);
}

}  // namespace tessera::gpu
