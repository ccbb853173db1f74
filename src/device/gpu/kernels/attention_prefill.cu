// Attention of many rows over f16 pages with tensor cores: online softmax, page by page.
//
// A block takes 128 (row, head) pairs of one KV head: consecutive rows times the heads that share
// it; a warp 16 of them. A page's keys and values stand in shared memory, each filled by
// asynchronous copies while the other is in use. Floor: 4 * head_dim operations a pair and token
// seen (4,096 rows of 16 heads of 256: 137 GFLOP, 0.2 ms at 790 TFLOP/s).
#include "device/gpu/kernels/attention.cuh"
#include "device/gpu/kernels/halves.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPairs = kWarps * 16;

// Tiles of [rows][kDim] halves in shared memory; 16-byte pieces are swizzled within a row.
template <int kDim>
__device__ __forceinline__ int piece_at(int row, int piece) {
  return row * kDim * 2 + (piece ^ (row % 8)) * 16;
}

template <int kDim>
__device__ __forceinline__ void copy_page(char* to, const std::byte* from, int valid) {
  constexpr int kPieces = kDim / 8;
#pragma unroll
  for (int i = 0; i < kPageTokens * kPieces / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = at / kPieces, piece = at % kPieces;
    copy_async(to + piece_at<kDim>(row, piece), from + at * 16, row < valid);
  }
}

// What a thread knows of its two pairs (rows g and g + 8 of the warp's matrix).
struct Pairs {
  int row[2], head[2], position[2];
  float top[2], sum[2];
};

template <int kDim>
__device__ __forceinline__ void score_page(const char* queries, const char* keys, int lane,
                                           float (&scores)[8][4]) {
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] = 0;
#pragma unroll 4
  for (int step = 0; step < kDim / 16; ++step) {
    std::uint32_t a[4];
    load_matrices(a, queries + piece_at<kDim>(lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t b[4];
      load_matrices(
          b, keys + piece_at<kDim>(16 * j + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
      multiply_f16(scores[2 * j], a, b[0], b[1]);
      multiply_f16(scores[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// Scores to weights; the sums so far shrink by factor[half].
__device__ __forceinline__ void weigh_page(const AttentionArgs& args, int start, Pairs& p,
                                           float (&scores)[8][4], float (&factor)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int last = p.position[half], first = first_seen(args, last);
    float top = p.top[half];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[j][2 * half + i];
        const int token = start + 8 * j + 2 * t + i;
        if (args.softcap > 0) score = args.softcap * tanhf(score / args.softcap);
        if (token > last || token < first) score = -INFINITY;
        top = fmaxf(top, score);
      }
    top = fmaxf(top, shuffle_xor(top, 1));
    top = fmaxf(top, shuffle_xor(top, 2));
    const float base = top == -INFINITY ? 0.0f : top;  // nothing seen yet
    factor[half] = __expf(p.top[half] - base);
    p.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[j][2 * half + i];
        score = __expf(score - base);
        sum += score;
      }
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    p.sum[half] = p.sum[half] * factor[half] + sum;
  }
}

template <int kDim>
__device__ __forceinline__ void add_values(const char* values, int lane,
                                           const float (&weights)[8][4],
                                           float (&out)[kDim / 8][4]) {
#pragma unroll
  for (int step = 0; step < kPageTokens / 16; ++step) {
    std::uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&w)[4] = weights[2 * step + i / 2];
      a[i] = as_bits(__floats2half2_rn(w[2 * (i % 2)], w[2 * (i % 2) + 1]));
    }
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) {
      std::uint32_t b[4];
      load_matrices_turned(b, values + piece_at<kDim>(16 * step + lane % 16, 2 * j + lane / 16));
      multiply_f16(out[2 * j], a, b[0], b[1]);
      multiply_f16(out[2 * j + 1], a, b[2], b[3]);
    }
  }
}

template <int kDim>
__device__ void load_queries(const float* q, const AttentionArgs& args, const Sequence& sequence,
                             int first_pair, int pairs, int heads, int kv_head, char* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kPairs * kDim / 8; i += kThreads) {
    const int pair = i / (kDim / 8), piece = i % (kDim / 8);
    uint4 packed = {0, 0, 0, 0};
    if (pair < pairs) {
      const std::int64_t row = sequence.first_row + (first_pair + pair) / heads;
      const int head = kv_head * heads + (first_pair + pair) % heads;
      const auto* at =
          reinterpret_cast<const float4*>(q + (row * args.n_head + head) * kDim + piece * 8);
      const float4 a = at[0], b = at[1];
      packed = {as_bits(__floats2half2_rn(a.x, a.y)), as_bits(__floats2half2_rn(a.z, a.w)),
                as_bits(__floats2half2_rn(b.x, b.y)), as_bits(__floats2half2_rn(b.z, b.w))};
    }
    *reinterpret_cast<uint4*>(to + piece_at<kDim>(pair, piece)) = packed;
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args, const float* q) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  char* queries = shared;
  char* keys = queries + kPairs * kDim * 2;
  char* values = keys + kPageTokens * kDim * 2;
  chain_wait();
  chain_trigger();
  // The longest first: later rows see more.
  const int kv_head = static_cast<int>(blockIdx.y);
  const Sequence sequence = args.step.sequences[blockIdx.z];
  const int heads = args.n_head / args.kv.kv_heads;
  const int first_pair = (static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x)) * kPairs;
  const int pairs = min(kPairs, sequence.n_rows * heads - first_pair);
  if (pairs <= 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  Pairs p;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = first_pair + min(warp * 16 + lane / 4 + 8 * half, pairs - 1);
    p.row[half] = sequence.first_row + pair / heads;
    p.head[half] = kv_head * heads + pair % heads;
    p.position[half] = sequence.first_position + pair / heads;
    p.top[half] = -INFINITY;
    p.sum[half] = 0;
  }
  load_queries<kDim>(q, args, sequence, first_pair, pairs, heads, kv_head, queries);
  const int oldest = sequence.first_position + first_pair / heads;
  const int newest = sequence.first_position + (first_pair + pairs - 1) / heads;
  const int begin = first_seen(args, oldest) / kPageTokens, end = newest / kPageTokens + 1;
  const KvHead place = kv_head_at(args.kv, kv_head);
  const int index = static_cast<int>(blockIdx.z);
  const int written = sequence.first_position + sequence.n_rows;  // tokens that are there
  const auto valid = [&](int page) { return min(kPageTokens, written - page * kPageTokens); };
  float out[kDim / 8][4] = {};
  copy_page<kDim>(keys, page_of(args, index, begin) + place.k, valid(begin));
  copy_commit();
  for (int page = begin; page < end; ++page) {
    copy_page<kDim>(values, page_of(args, index, page) + place.v, valid(page));
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    float scores[8][4], factor[2];
    score_page<kDim>(queries + warp * 16 * kDim * 2, keys, lane, scores);
    __syncthreads();
    if (page + 1 < end)
      copy_page<kDim>(keys, page_of(args, index, page + 1) + place.k, valid(page + 1));
    copy_commit();
    weigh_page(args, page * kPageTokens, p, scores, factor);
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[j][i] *= factor[i / 2];
    copy_wait<1>();
    __syncthreads();
    add_values<kDim>(values, lane, scores, out);
    __syncthreads();
  }
  copy_wait<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (warp * 16 + lane / 4 + 8 * half >= pairs) continue;
    const float inverse = 1.0f / p.sum[half];
    float* to = args.out + p.row[half] * args.out_stride + p.head[half] * kDim;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const int d = 8 * j + 2 * (lane % 4);
      const float a = out[j][2 * half] * inverse * gate_factor(args, p.row[half], p.head[half], d);
      const float b =
          out[j][2 * half + 1] * inverse * gate_factor(args, p.row[half], p.head[half], d + 1);
      *reinterpret_cast<float2*>(to + d) = make_float2(a, b);
    }
  }
}

template <int kDim>
GpuError launch_prefill(const Launch& launch, const AttentionArgs& args,
                        const AttentionScratch& scratch) {
  const int heads = args.n_head / args.kv.kv_heads;
  const dim3 grid(
      static_cast<unsigned>((args.step.max_sequence_rows * heads + kPairs - 1) / kPairs),
      static_cast<unsigned>(args.kv.kv_heads), static_cast<unsigned>(args.step.n_sequences));
  const std::size_t shared = std::size_t{kPairs + 2 * kPageTokens} * kDim * 2;
  return launch_kernel(launch, prefill_kernel<kDim>, grid, dim3(kThreads), shared, args, scratch.q);
}

}  // namespace

bool has_prefill_attention(const AttentionArgs& args) {
#ifdef TESSERA_GPU_HIP
  return false;  // the loads of matrices are NVIDIA's
#else
  const int dim = args.kv.head_dim_k;
  return args.step.rows > kDecodeRows && args.kv.format == KvFormat::f16 &&
         dim == args.kv.head_dim_v && (dim == 64 || dim == 128 || dim == 256);
#endif
}

GpuError attend_prefill(const Launch& launch, const AttentionArgs& args,
                        const AttentionScratch& scratch) {
  switch (args.kv.head_dim_k) {
    case 64:
      return launch_prefill<64>(launch, args, scratch);
    case 128:
      return launch_prefill<128>(launch, args, scratch);
    default:
      return launch_prefill<256>(launch, args, scratch);
  }
}

}  // namespace tessera::gpu
