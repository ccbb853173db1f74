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
// U = T diag(beta) V, W = T diag(beta e^G) K and the masked products P of queries and keys.
// scan_kernel goes through a head's chunks in order: D = U - W S, o = e^G Q S + P D,
// S <- e^G_last S + K' (e^(G_last - G) D). Products take f16 operands and sum in f32; S stays f32.
// A row's result depends on its place in the chunk, so on where prompts are cut.
//
// The scan computes the transposes: 16 columns of S are 16 rows of S', whose sums a warp keeps in
// registers in the order in which the next product takes its left operand. Such a writer computes D
// and the next S and hands both on; a reader, a chunk behind it, computes o. So the chain from
// chunk to chunk is two products of one warp, and the block has one barrier a chunk.
//
// Bytes of 4,096 rows of 16 and 32 heads of 128: 134 MB read, 118 MB written and read, 67 MB
// written, 150 us at 2.9 TB/s. Each of the four slices of a head reads W, Q, K and P: 500 MB from
// L2. A chunk of a slice is 424 products of 16 x 8 x 16: 128 a writer, 84 a reader.
#include "device/gpu/kernels/delta_prepare.cuh"

namespace tessera::gpu {
namespace {

constexpr int kSlice = 32;  // columns of S a block
constexpr int kGroup = 16;  // of them a writer and its reader
constexpr int kGroups = kSlice / kGroup;
constexpr int kScanThreads = 2 * kGroups * kWarp;
constexpr int kFetchers = kGroups * kWarp;  // the readers

// What a round needs: the writers' of a chunk and the readers' of the one before.
template <int D>
struct ScanStage {
  __half w[kChunk][D + kPad];
  __half k[kChunk][D + kPad];
  __half u[kChunk][kSlice + kPad];
  __half q[kChunk][D + kPad];
  __half p[kChunk][kChunk + kPad];
};
template <int D, int kStages>
struct alignas(16) ScanShared {
  ScanStage<D> stage[kStages];
  // From writer to reader, as left operands of a lane: S' before a chunk and D'.
  uint4 s[2][kGroups][D / 16][kWarp];
  uint4 d[2][kGroups][kTiles][kWarp];
  float decays[3][2][kChunk];  // e^G, e^(G_last - G)
};

// Where a block's head and sequence lie.
struct ScanPlace {
  Sequence sequence;
  int head, column, chunks;
  std::int64_t cells, key_cells;  // of the sequence's first row
  __device__ __forceinline__ int rows_of(int chunk) const {
    return min(kChunk, sequence.n_rows - chunk * kChunk);
  }
};

__device__ __forceinline__ ScanPlace scan_place(const DeltaArgs& args, const DeltaShape& s) {
  ScanPlace at;
  at.sequence = args.step.sequences[blockIdx.z];
  at.head = static_cast<int>(blockIdx.y);
  at.column = static_cast<int>(blockIdx.x) * kSlice;
  at.chunks = (at.sequence.n_rows + kChunk - 1) / kChunk;
  const auto first = [&](int head) {
    return static_cast<std::int64_t>(head) * args.step.rows + at.sequence.first_row;
  };
  at.cells = first(at.head);
  at.key_cells = first(key_head_of(s, at.head));
  return at;
}

template <int kWidth, int kStride>
__device__ __forceinline__ void fetch_rows(__half (&to)[kChunk][kStride], const __half* from,
                                           int stride, int rows, int thread) {
  constexpr int kPieces = kWidth / 8, kStep = kFetchers / kPieces;
  const int first = thread / kPieces, c = thread % kPieces * 8;
  from += first * stride + c;
#pragma unroll
  for (int i = 0; i < kChunk; i += kStep)
    copy_async(&to[first + i][c], from + i * stride, first + i < rows);
}

// By the readers, thread 0 .. kFetchers - 1.
template <int D>
__device__ __forceinline__ void fetch_round(const Prepared& all, const ScanPlace& at, int round,
                                            ScanStage<D>& to, int thread) {
  if (round < at.chunks) {
    const int rows = at.rows_of(round);
    const std::int64_t cell = at.cells + round * kChunk, key_cell = at.key_cells + round * kChunk;
    fetch_rows<D>(to.w, all.w + cell * D, D, rows, thread);
    fetch_rows<kSlice>(to.u, all.u + cell * D + at.column, D, rows, thread);
    fetch_rows<D>(to.k, all.k + key_cell * D, D, rows, thread);
  }
  const int chunk = round - 1;
  if (chunk >= 0 && chunk < at.chunks) {
    const int rows = at.rows_of(chunk);
    const std::int64_t cell = at.cells + chunk * kChunk, key_cell = at.key_cells + chunk * kChunk;
    fetch_rows<D>(to.q, all.q + key_cell * D, D, rows, thread);
    fetch_rows<kChunk>(to.p, all.p + cell * kChunk, kChunk, rows, thread);
  }
  copy_commit();
}

// This thread's of the 128 decays of a chunk.
__device__ __forceinline__ float load_decay(const Prepared& all, const ScanPlace& at, int chunk) {
  static_assert(kScanThreads == 2 * kChunk);
  const int row = static_cast<int>(threadIdx.x) % kChunk;
  if (chunk >= at.chunks || row >= at.rows_of(chunk)) return 0.0f;
  const float* from = static_cast<int>(threadIdx.x) < kChunk ? all.grown : all.rest;
  return from[at.cells + chunk * kChunk + row];
}
__device__ __forceinline__ void store_decay(float (&to)[2][kChunk], float value) {
  to[threadIdx.x / kChunk][threadIdx.x % kChunk] = value;
}

// Sums of 16 x 16 as the left operand of 16 columns of k: the sums' own order.
__device__ __forceinline__ uint4 left_operand(const float (&left)[4], const float (&right)[4]) {
  return {two_halves(left[0], left[1]), two_halves(left[2], left[3]),
          two_halves(right[0], right[1]), two_halves(right[2], right[3])};
}

// sum += a times 16 columns of k of the transposed rows from tile kFirst of 16 on.
template <int kFirst, int kStride>
__device__ __forceinline__ void multiply_rows(float (&sum)[kChunk / 8][4], const uint4& left,
                                              const __half (&rows)[kChunk][kStride], int k) {
  const std::uint32_t a[4] = {left.x, left.y, left.z, left.w};
#pragma unroll
  for (int n = kFirst; n < kTiles; ++n) {
    std::uint32_t b[4];
    load_right_transposed(b, &rows[16 * n][k], kStride);
    multiply_f16(sum[2 * n], a, b[0], b[1]);
    multiply_f16(sum[2 * n + 1], a, b[2], b[3]);
  }
}

// D' = U' - S' W' of a chunk.
template <int D>
__device__ __forceinline__ void solve_chunk(const ScanStage<D>& stage, int group,
                                            const float (&S)[D / 8][4], uint4 (*to)[kWarp],
                                            float (&d)[kChunk / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    std::uint32_t u[4];
    load_columns(u, &stage.u[16 * n][group * kGroup], kSlice + kPad);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = __half22float2(as_half2(u[i]));
      d[2 * n + i / 2][i % 2 * 2] = two.x;
      d[2 * n + i / 2][i % 2 * 2 + 1] = two.y;
    }
  }
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const uint4 a = left_operand(S[2 * k], S[2 * k + 1]);
    to[k][lane] = a;
    multiply_rows<0>(d, a, stage.w, 16 * k);
  }
}

// S' <- e^G_last S' + (e^(G_last - G) D)' K.
template <int D>
__device__ __forceinline__ void update_state(const ScanStage<D>& stage,
                                             const float (&decays)[2][kChunk], int rows,
                                             float (&d)[kChunk / 8][4], uint4 (*to)[kWarp],
                                             float (&S)[D / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, t = lane % 4;
  const float whole = decays[0][rows - 1];
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) S[n][i] *= whole;
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    to[k][lane] = left_operand(d[2 * k], d[2 * k + 1]);
#pragma unroll
    for (int n = 2 * k; n < 2 * k + 2; ++n) {
      const float2 rest = *reinterpret_cast<const float2*>(&decays[1][8 * n + 2 * t]);
      d[n][0] *= rest.x, d[n][1] *= rest.y, d[n][2] *= rest.x, d[n][3] *= rest.y;
    }
    const uint4 left = left_operand(d[2 * k], d[2 * k + 1]);
    const std::uint32_t a[4] = {left.x, left.y, left.z, left.w};
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      std::uint32_t b[4];
      load_right(b, &stage.k[16 * k][16 * n], D + kPad);
      multiply_f16(S[2 * n], a, b[0], b[1]);
      multiply_f16(S[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// `out`: the reader's first column of the chunk's first row.
__device__ __forceinline__ void store_chunk(const float (&o)[kChunk / 8][4], float* out, int stride,
                                            int rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  out += static_cast<std::int64_t>(2 * t) * stride + g;
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * n + i % 2;
      if (row + 2 * t < rows) out[static_cast<std::int64_t>(row) * stride + i / 2 * 8] = o[n][i];
    }
}

// o' = q_scale e^G S' Q' + D' P' of a chunk, to memory; `s` and `d` are the writer's.
template <int D>
__device__ __forceinline__ void read_chunk(const ScanStage<D>& stage, const float (&grown)[kChunk],
                                           const uint4 (*s)[kWarp], const uint4 (*d)[kWarp],
                                           float* out, int stride, int rows) {
  float o[kChunk / 8][4] = {};
  const int lane = static_cast<int>(threadIdx.x) % kWarp, t = lane % 4;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) multiply_rows<0>(o, s[k][lane], stage.q, 16 * k);
  const float q_scale = 1.0f / sqrtf(static_cast<float>(D));
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {
    const float2 two = *reinterpret_cast<const float2*>(&grown[8 * n + 2 * t]);
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] *= q_scale * (i % 2 == 0 ? two.x : two.y);
  }
  static_assert(kTiles == 4);
  multiply_rows<0>(o, d[0][lane], stage.p, 0);
  multiply_rows<1>(o, d[1][lane], stage.p, 16);
  multiply_rows<2>(o, d[2][lane], stage.p, 32);
  multiply_rows<3>(o, d[3][lane], stage.p, 48);
  store_chunk(o, out, stride, rows);
}

// Two neighbours of S' in memory, where a lane of the writer keeps them: state is [column][dim_k].
template <int D>
__device__ __forceinline__ float2* state_at(float* state, int n, int lower) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return reinterpret_cast<float2*>(state + (lane / 4 + 8 * lower) * D + 8 * n + 2 * (lane % 4));
}
template <int D>
__device__ __forceinline__ void load_state(float* state, float (&S)[D / 8][4]) {
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const float2 two = *state_at<D>(state, n, lower);
      S[n][2 * lower] = two.x, S[n][2 * lower + 1] = two.y;
    }
}
template <int D>
__device__ __forceinline__ void store_state(const float (&S)[D / 8][4], float* state) {
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int lower = 0; lower < 2; ++lower)
      *state_at<D>(state, n, lower) = make_float2(S[n][2 * lower], S[n][2 * lower + 1]);
}

// Grid: slices of S's columns, value heads, sequences. Warps: a writer of each group, then the
// readers. A round is a chunk of the writers and the one before it of the readers.
template <int D, int kStages>
__global__ void __launch_bounds__(kScanThreads, 1)
    scan_kernel(const TESSERA_GRID_CONSTANT DeltaArgs args, void* memory) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  auto& m = *reinterpret_cast<ScanShared<D, kStages>*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, group = warp % kGroups;
  const bool reader = warp >= kGroups;
  chain_wait();
  chain_trigger();
  const DeltaShape s = shape_of(args.spec);
  const ScanPlace at = scan_place(args, s);
  const Prepared all = prepared_at(memory, args.spec, args.step.rows);
  float* ring = args.state + at.sequence.slot * args.slot_stride;
  float* state = ring + s.width * s.channels + static_cast<std::int64_t>(at.head) * D * D +
                 (at.column + group * kGroup) * D;
  const int stride = s.value_heads * D;
  float* out = args.out + static_cast<std::int64_t>(at.sequence.first_row) * stride + at.head * D +
               at.column + group * kGroup;
  const int fetcher = static_cast<int>(threadIdx.x) - kFetchers;

  float S[D / 8][4];
  if (reader) {
#pragma unroll
    for (int round = 0; round < kStages - 1; ++round)
      fetch_round(all, at, round, m.stage[round], fetcher);
  } else {
    load_state<D>(state, S);
  }
  store_decay(m.decays[0], load_decay(all, at, 0));
  for (int round = 0; round <= at.chunks; ++round) {
    const ScanStage<D>& stage = m.stage[round % kStages];
    if constexpr (kStages == 1) {
      __syncthreads();
      if (reader) fetch_round(all, at, round, m.stage[0], fetcher);
    }
    copy_wait<kStages == 1 ? 0 : kStages - 2>();
    __syncthreads();
    const float next_decay = load_decay(all, at, round + 1);
    if (reader) {
      const int later = round + kStages - 1, chunk = round - 1;
      if constexpr (kStages > 1) fetch_round(all, at, later, m.stage[later % kStages], fetcher);
      if (chunk >= 0)
        read_chunk(stage, m.decays[chunk % 3][0], m.s[chunk % 2][group], m.d[chunk % 2][group],
                   out + static_cast<std::int64_t>(chunk) * kChunk * stride, stride,
                   at.rows_of(chunk));
    } else if (round < at.chunks) {
      float d[kChunk / 8][4];
      solve_chunk<D>(stage, group, S, m.s[round % 2][group], d);
      update_state<D>(stage, m.decays[round % 3], at.rows_of(round), d, m.d[round % 2][group], S);
    }
    store_decay(m.decays[(round + 1) % 3], next_decay);
  }
  if (!reader) store_state<D>(S, state);
  update_ring(args, s, at.sequence, ring, static_cast<int>(blockIdx.y + gridDim.y * blockIdx.x),
              static_cast<int>(gridDim.x * gridDim.y));
}

template <int D, int kStages>
GpuError scan(const Launch& launch, const DeltaArgs& args, void* memory) {
  const dim3 grid(D / kSlice, static_cast<unsigned>(args.spec.n_value_head),
                  static_cast<unsigned>(args.step.n_sequences));
  return launch_kernel(launch, scan_kernel<D, kStages>, grid, dim3(kScanThreads),
                       sizeof(ScanShared<D, kStages>), args, memory);
}

template <int D>
GpuError run(const Launch& launch, const DeltaArgs& args, const float* conv, void* memory) {
  const GatedDeltaSpec& spec = args.spec;
  const dim3 grid(
      static_cast<unsigned>(spec.n_key_head * pairs_of(spec.n_key_head, spec.n_value_head)),
      static_cast<unsigned>((args.step.max_sequence_rows + kChunk - 1) / kChunk),
      static_cast<unsigned>(args.step.n_sequences));
  const GpuError error = launch_kernel(launch, prepare_kernel<D>, grid, dim3(kThreads),
                                       sizeof(PrepareShared<D>), args, conv, memory);
  if (error != GpuError{}) return error;
  // One stage fits the 99 KB of compute capability 8.6 and 8.9.
  const std::size_t limit = shared_limit(launch);
  return limit >= sizeof(ScanShared<D, 3>)   ? scan<D, 3>(launch, args, memory)
         : limit >= sizeof(ScanShared<D, 2>) ? scan<D, 2>(launch, args, memory)
                                             : scan<D, 1>(launch, args, memory);
}

}  // namespace

GpuError delta_chunked(const Launch& launch, const DeltaArgs& args, const float* conv,
                       void* memory) {
  return args.spec.dim_k == 128 ? run<128>(launch, args, conv, memory)
                                : run<64>(launch, args, conv, memory);
}

}  // namespace tessera::gpu
