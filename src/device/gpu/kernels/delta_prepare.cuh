// The first half of the chunked gated delta rule: what needs no state, for all chunks and heads at
// once (delta_chunked.cu has the formulas).
//
// A block takes a chunk of up to two value heads that share a key head: q and k are loaded and
// multiplied once for both. Chunks go last first, so that the first ones are still in L2 when the
// scan asks for them. Three blocks stand on a multiprocessor.
#pragma once

#include "device/gpu/kernels/delta_inverse.cuh"
#include "device/gpu/kernels/delta_rows.cuh"

namespace tessera::gpu {
namespace {

constexpr int kHeads = 2;            // value heads a block
constexpr int kTiles = kChunk / 16;  // of 16 rows

// What goes from one kernel to the other. Per value head and row: -W and U [D], P [64], of which
// what is above the tiles of 16 x 16 on the diagonal is not written, e^G and e^(G_last - G). Per
// key head and row: the l2-normed q and k [D].
struct Prepared {
  __half *w, *u, *p, *q, *k;
  float *grown, *rest;
};
__host__ __device__ inline Prepared prepared_at(void* memory, const GatedDeltaSpec& spec,
                                                int rows) {
  const std::int64_t cells = static_cast<std::int64_t>(rows) * spec.n_value_head,
                     key_cells = static_cast<std::int64_t>(rows) * spec.n_key_head;
  Prepared out;
  out.w = static_cast<__half*>(memory);
  out.u = out.w + cells * spec.dim_k;
  out.p = out.u + cells * spec.dim_k;
  out.q = out.p + cells * kChunk;
  out.k = out.q + key_cells * spec.dim_k;
  out.grown = reinterpret_cast<float*>(out.k + key_cells * spec.dim_k);
  out.rest = out.grown + cells;
  return out;
}

// The value heads of a block: `count` of those that share a key head.
struct HeadPair {
  int key, first, step, count;
  bool stores_keys;  // one block of a key head does
  __device__ __forceinline__ int value(int i) const { return first + i * step; }
};
__host__ __device__ inline int pairs_of(int key_heads, int value_heads) {
  return (value_heads / key_heads + kHeads - 1) / kHeads;
}
__device__ __forceinline__ HeadPair head_pair(const DeltaShape& s, int block) {
  const int shared = s.value_heads / s.key_heads, pairs = pairs_of(s.key_heads, s.value_heads);
  const int key = block / pairs, before = block % pairs * kHeads;
  const int step = s.grouped ? 1 : s.key_heads;
  return {key, (s.grouped ? key * shared : key) + before * step, step, min(kHeads, shared - before),
          before == 0};
}

// What the phases of a block need to know: in shared memory, so that it takes no registers.
struct Work {
  Sequence sequence;
  ChunkPlace chunk;
  HeadPair heads;
  Prepared all;
  // In rows of a buffer of value heads: the first head's first row, and from head to head.
  std::int64_t cell, stride;
};

template <int D>
struct alignas(16) PrepareShared {
  __half k[kChunk][D + kPad];
  union {
    __half q[kChunk][D + kPad];
    __half t[kHeads][kChunk][kChunk + kPad];  // T with its columns scaled
  };
  union {
    float a[kHeads][kChunk][kSystemStride];  // A, then T
    __half v[kHeads][kChunk][D + kPad];
  };
  float gate[kHeads][kChunk];  // G
  float beta[kHeads][kChunk];
  Work work;
};

// G and beta of the chunk's rows; rows past the end decay nothing and write nothing.
template <int D>
__device__ __forceinline__ void load_gates(const DeltaArgs& args, const DeltaShape& s,
                                           const HeadPair& heads, const ChunkPlace& chunk,
                                           PrepareShared<D>& m) {
  const int row = static_cast<int>(threadIdx.x) % kChunk,
            i = static_cast<int>(threadIdx.x) / kChunk, head = heads.value(i);
  const bool there = i < heads.count;
  if (there) {
    float g = 0.0f, b = 0.0f;
    if (row < chunk.rows) {
      const std::int64_t at = (chunk.first + row) * s.value_heads + head;
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
    m.gate[i][row] = g;
    m.beta[i][row] = b;
  }
  __syncthreads();
  const float first_warp = there ? m.gate[i][kWarp - 1] : 0.0f;
  __syncthreads();
  if (there && row >= kWarp) m.gate[i][row] += first_warp;
  __syncthreads();
}

// A row's 16 columns of sums as halves: of each two lanes one stores the left eight's, the other
// the right's, 8 bytes a lane. For the whole warp, also where the row is not `there`.
__device__ __forceinline__ void store_tile_row(const float* left, const float* right, __half* row,
                                               bool there) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool odd = t % 2 != 0;
  const std::uint32_t l = two_halves(left[0], left[1]), r = two_halves(right[0], right[1]);
  const std::uint32_t got = shuffle_xor(odd ? l : r, 1);
  if (there)
    *reinterpret_cast<uint2*>(row + (odd ? 8 + 2 * (t - 1) : 2 * t)) =
        odd ? make_uint2(got, r) : make_uint2(l, got);
}

// sum = 16 rows of `left` times 16 rows of `right` over D columns.
template <int D>
__device__ __forceinline__ void multiply_keys(float (&sum)[2][4], const __half* left,
                                              const __half* right) {
#pragma unroll
  for (int c = 0; c < D; c += 16) {
    std::uint32_t a[4], b[4];
    load_rows(a, left + c, D + kPad);
    load_right_transposed(b, right + c, D + kPad);
#pragma unroll
    for (int half = 0; half < 2; ++half) multiply_f16(sum[half], a, b[2 * half], b[2 * half + 1]);
  }
}

// A (strictly below the diagonal) into m.a and P to memory, by tiles of 16 x 16 on and below the
// diagonal: the first half of the warps those of A, the second those of P.
template <int D>
__device__ __forceinline__ void key_products(PrepareShared<D>& m, const HeadPair& heads, int rows,
                                             float q_scale, __half* p, std::int64_t head_stride) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const bool query = warp >= kWarps / 2;
#pragma unroll 1
  for (int tile = warp % (kWarps / 2); tile < kTiles * (kTiles + 1) / 2; tile += kWarps / 2) {
    const int r = tile < 1 ? 0 : tile < 3 ? 1 : tile < 6 ? 2 : 3, c = tile - r * (r + 1) / 2;
    float sum[2][4] = {};
    multiply_keys<D>(sum, query ? &m.q[16 * r][0] : &m.k[16 * r][0], &m.k[16 * c][0]);
    for (int h = 0; h < heads.count; ++h) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = 16 * r + g + 8 * upper;
        const float own = m.gate[h][row], factor = query ? q_scale : m.beta[h][row];
        float out[2][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = 16 * c + i / 2 * 8 + 2 * t + i % 2;
          // Above the diagonal the exponent would be positive.
          const float decay = column <= row ? __expf(own - m.gate[h][column]) : 0.0f;
          out[i / 2][i % 2] = factor * decay * sum[i / 2][2 * upper + i % 2];
        }
        if (query) {
          store_tile_row(out[0], out[1], p + h * head_stride + row * kChunk + 16 * c, row < rows);
        } else {
#pragma unroll
          for (int half = 0; half < 2; ++half)
            *reinterpret_cast<float2*>(&m.a[h][row][16 * c + 8 * half + 2 * t]) =
                make_float2(out[half][0], out[half][1]);
        }
      }
    }
  }
}

template <int D>
__device__ __forceinline__ void store_keys(const PrepareShared<D>& m, int rows, __half* q,
                                           __half* k) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * (D / 8); i += kThreads) {
    const int row = i / (D / 8), c = i % (D / 8) * 8;
    *reinterpret_cast<uint4*>(q + row * D + c) = *reinterpret_cast<const uint4*>(&m.q[row][c]);
    *reinterpret_cast<uint4*>(k + row * D + c) = *reinterpret_cast<const uint4*>(&m.k[row][c]);
  }
}

// The decays of a row since the chunk's begin and from it to the chunk's end.
template <int D>
__device__ __forceinline__ void store_decays(const PrepareShared<D>& m, int heads, int rows,
                                             const Prepared& all, std::int64_t cell,
                                             std::int64_t head_stride) {
  const int row = static_cast<int>(threadIdx.x) % kChunk,
            h = static_cast<int>(threadIdx.x) / kChunk;
  if (h >= heads || row >= rows) return;
  const float gate = m.gate[h][row];
  all.grown[cell + h * head_stride + row] = expf(gate);
  all.rest[cell + h * head_stride + row] = expf(m.gate[h][kChunk - 1] - gate);
}

// t = T with column i of head h times factor(h, i), as halves.
template <int D, typename Factor>
__device__ __forceinline__ void scale_inverse(PrepareShared<D>& m, int heads, Factor factor) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % kWarp),
            warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int h = 0; h < heads; ++h) {
    const float left = factor(h, column), right = factor(h, column + 1);
#pragma unroll
    for (int row = warp; row < kChunk; row += kWarps) {
      const float2 v = *reinterpret_cast<const float2*>(&m.a[h][row][column]);
      *reinterpret_cast<std::uint32_t*>(&m.t[h][row][column]) =
          two_halves(column <= row ? v.x * left : 0.0f, column < row ? v.y * right : 0.0f);
    }
  }
}

// out = t times the rows of `right` of each head; a warp takes 16 columns of one head at a time.
template <int D, typename Right>
__device__ __forceinline__ void multiply_inverse(const PrepareShared<D>& m, int heads, Right right,
                                                 int rows, __half* out, std::int64_t head_stride) {
  constexpr int kColumns = D / 16;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            g = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll 1
  for (int job = warp; job < heads * kColumns; job += kWarps) {
    const int h = job / kColumns, n = job % kColumns * 16;
    std::uint32_t b[kTiles][4];
#pragma unroll
    for (int k = 0; k < kTiles; ++k) load_right(b[k], right(h) + 16 * k * (D + kPad) + n, D + kPad);
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      float sum[2][4] = {};
#pragma unroll
      for (int k = 0; k <= r; ++k) {
        std::uint32_t a[4];
        load_rows(a, &m.t[h][16 * r][16 * k], kChunk + kPad);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          multiply_f16(sum[half], a, b[k][2 * half], b[k][2 * half + 1]);
      }
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int row = 16 * r + g + 8 * upper;
        store_tile_row(&sum[0][2 * upper], &sum[1][2 * upper], out + h * head_stride + row * D + n,
                       row < rows);
      }
    }
  }
}

__device__ __forceinline__ Work work_of(const DeltaArgs& args, const DeltaShape& s, void* memory) {
  Work work;
  work.sequence = args.step.sequences[blockIdx.z];
  const int before = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kChunk;
  work.chunk = {before, min(kChunk, work.sequence.n_rows - before),
                std::int64_t{work.sequence.first_row} + before};
  work.heads = head_pair(s, static_cast<int>(blockIdx.x));
  work.all = prepared_at(memory, args.spec, args.step.rows);
  work.cell = static_cast<std::int64_t>(work.heads.first) * args.step.rows + work.chunk.first;
  work.stride = static_cast<std::int64_t>(work.heads.step) * args.step.rows;
  return work;
}

// q and k into shared memory, P and what else the scan wants of them to memory; A.
template <int D>
__device__ __forceinline__ void prepare_keys(const DeltaArgs& args, const DeltaShape& s,
                                             const float* conv, PrepareShared<D>& m) {
  const Work& at = m.work;
  load_gates(args, s, at.heads, at.chunk, m);
#pragma unroll 1
  for (int i = 0; i < 2; ++i)
    load_head<D, true>(args, s, at.sequence, at.chunk, conv, (i * s.key_heads + at.heads.key) * D,
                       i == 0 ? m.q : m.k);
  __syncthreads();
  key_products(m, at.heads, at.chunk.rows, 1.0f / sqrtf(static_cast<float>(D)),
               at.all.p + at.cell * kChunk, at.stride * kChunk);
  store_decays(m, at.heads.count, at.chunk.rows, at.all, at.cell, at.stride);
  if (at.heads.stores_keys) {
    const std::int64_t cell = static_cast<std::int64_t>(at.heads.key) * args.step.rows;
    store_keys(m, at.chunk.rows, at.all.q + (cell + at.chunk.first) * D,
               at.all.k + (cell + at.chunk.first) * D);
  }
  __syncthreads();
}

// -W; then v into shared memory where the inverse was, and U.
template <int D>
__device__ __forceinline__ void prepare_writes(const DeltaArgs& args, const DeltaShape& s,
                                               const float* conv, PrepareShared<D>& m) {
  const Work& at = m.work;
  const int heads = at.heads.count;
  scale_inverse(m, heads, [&](int h, int i) { return -m.beta[h][i] * expf(m.gate[h][i]); });
  __syncthreads();
  multiply_inverse(
      m, heads, [&](int) { return &m.k[0][0]; }, at.chunk.rows, at.all.w + at.cell * D,
      at.stride * D);
  __syncthreads();
  scale_inverse(m, heads, [&](int h, int i) { return m.beta[h][i]; });
  __syncthreads();
#pragma unroll 1
  for (int h = 0; h < heads; ++h)
    load_head<D, false>(args, s, at.sequence, at.chunk, conv,
                        (2 * s.key_heads + at.heads.value(h)) * D, m.v[h]);
  __syncthreads();
  multiply_inverse(
      m, heads, [&](int h) { return &m.v[h][0][0]; }, at.chunk.rows, at.all.u + at.cell * D,
      at.stride * D);
}

// Grid: pairs of value heads, chunks of the longest sequence, sequences. `conv`: the convolved
// rows; null: convolved here.
template <int D>
__global__ void __launch_bounds__(kThreads, 3)
    prepare_kernel(const TESSERA_GRID_CONSTANT DeltaArgs args, const float* conv, void* memory) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  auto& m = *reinterpret_cast<PrepareShared<D>*>(shared);
  chain_wait();
  chain_trigger();
  const DeltaShape s = shape_of(args.spec);
  if (threadIdx.x == 0) m.work = work_of(args, s, memory);
  __syncthreads();
  if (m.work.chunk.rows <= 0) return;
  prepare_keys(args, s, conv, m);
  invert(m.a, m.work.heads.count);
  prepare_writes(args, s, conv, m);
}

}  // namespace
}  // namespace tessera::gpu
