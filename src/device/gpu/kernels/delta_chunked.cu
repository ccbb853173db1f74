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
#include "device/gpu/kernels/delta_prepare.cuh"

namespace tessera::gpu {
namespace {

constexpr int kSlice = 32;  // columns of S a block of the scan

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

template <int kWidth, int kStride>
__device__ __forceinline__ void fetch_rows(__half (&to)[kChunk][kStride], const __half* from,
                                           int stride, int rows) {
  constexpr int kPieces = kWidth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kChunk * kPieces; i += kThreads) {
    const int row = i / kPieces, c = i % kPieces * 8;
    const bool there = row < rows;
    copy_async(&to[row][c], from + (there ? row : 0) * stride + c, there);
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
  TESSERA_DYNAMIC_SHARED(char, shared);
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
  copy_commit();
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
      copy_commit();
      copy_wait<1>();
    } else {
      copy_wait<0>();
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
