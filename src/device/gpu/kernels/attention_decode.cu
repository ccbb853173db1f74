// Attention of few rows over f16 pages: one block a row, KV head and span of 256 tokens.
//
// The query heads that share the KV head are the rows of a matrix instruction. Scores: each warp 32
// tokens, keys straight from the page in 16-byte pieces. Values: each warp an eighth of the head's
// width, all tokens. Floor: the keys and values, 2 * head_dim * 2 bytes a token and KV head
// (16,384 tokens of 2 heads of 256: 33.5 MB, 7.3 us).
#include "device/gpu/kernels/attention.cuh"
#include "device/gpu/kernels/halves.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPages = kSpanTokens / kPageTokens;
constexpr int kMaxHeads = 16;
constexpr int kScoreStride = kSpanTokens + 4;
constexpr int kWeightStride = kSpanTokens + 8;

struct Shared {
  float scores[kMaxHeads][kScoreStride];
  __half weights[kMaxHeads][kWeightStride];
  const std::byte* pages[kPages];
};

// The queries as A operands: lane (g, t) holds dimensions 32i + 8t .. + 7 of heads g and g + 8.
template <int kDim>
__device__ __forceinline__ void load_queries(const float* q, int heads, int lane,
                                             std::uint32_t (&a)[kDim / 32][2][4]) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = g + 8 * half;
      float4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
      if (head < heads) {
        const float4* at = reinterpret_cast<const float4*>(q + head * kDim + 32 * i + 8 * t);
        low = at[0], high = at[1];
      }
      a[i][0][half] = as_bits(__floats2half2_rn(low.x, low.y));
      a[i][0][2 + half] = as_bits(__floats2half2_rn(low.z, low.w));
      a[i][1][half] = as_bits(__floats2half2_rn(high.x, high.y));
      a[i][1][2 + half] = as_bits(__floats2half2_rn(high.z, high.w));
    }
}

// Scores of the warp's 32 tokens.
template <int kDim>
__device__ void score_tokens(const AttentionArgs& args, const float* q, int heads,
                             std::int64_t k_at, int span_start, int begin, int end, Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int first = warp * 32;
  if (span_start + first >= end || span_start + first + 32 <= begin) {
    for (int head = 0; head < heads; ++head) s.scores[head][first + lane] = -INFINITY;
    return;
  }
  std::uint32_t a[kDim / 32][2][4];
  load_queries<kDim>(q, heads, lane, a);
  const auto* keys = reinterpret_cast<const __half*>(s.pages[first / kPageTokens] + k_at);
#pragma unroll 2
  for (int j = 0; j < 4; ++j) {
    const int token = first + 8 * j;
    const uint4* from =
        reinterpret_cast<const uint4*>(keys + (token % kPageTokens + g) * kDim + 8 * t);
    uint4 k[kDim / 32];
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) k[i] = load_stream(from + 4 * i);
    float d[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      multiply_f16(d, a[i][0], k[i].x, k[i].y);
      multiply_f16(d, a[i][1], k[i].z, k[i].w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = g + i / 2 * 8, at = token + 2 * t + i % 2;
      float score = d[i];
      if (args.softcap > 0) score = args.softcap * tanhf(score / args.softcap);
      const bool seen = span_start + at >= begin && span_start + at < end;
      if (head < heads) s.scores[head][at] = seen ? score : -INFINITY;
    }
  }
}

// One warp a head: weights, their top and sum.
__device__ void weigh_span(int heads, float* partial, std::int64_t stride, int dims, Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int head = warp; head < heads; head += kWarps) {
    float x[kSpanTokens / kWarp], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kSpanTokens / kWarp; ++i) {
      x[i] = s.scores[head][i * kWarp + lane];
      top = fmaxf(top, x[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kSpanTokens / kWarp; ++i) {
      const __half w = __float2half_rn(expf(x[i] - top));
      s.weights[head][i * kWarp + lane] = w;
      sum += __half2float(w);
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[head * stride + dims] = top, partial[head * stride + dims + 1] = sum;
  }
}

// kN halves of one token's value.
template <int kN>
struct Values {
  std::uint32_t words[kN == 1 ? 1 : kN / 2];
  __device__ __forceinline__ void keep(bool valid) {
#pragma unroll
    for (std::uint32_t& word : words) word = valid ? word : 0;
  }
  __device__ __forceinline__ void load(const __half* at) {
    if constexpr (kN == 1) {
      words[0] = *reinterpret_cast<const std::uint16_t*>(at);
    } else if constexpr (kN == 2) {
      words[0] = load_stream(reinterpret_cast<const std::uint32_t*>(at));
    } else if constexpr (kN == 4) {
      const uint2 v = load_stream(reinterpret_cast<const uint2*>(at));
      words[0] = v.x, words[1] = v.y;
    } else {
      const uint4 v = load_stream(reinterpret_cast<const uint4*>(at));
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    }
  }
};

// The warp's columns of the weighted sum of values. Lane g's kN columns are its share of as many
// operands.
template <int kDim>
__device__ void sum_values(int heads, std::int64_t v_at, int first, int limit, float* partial,
                           std::int64_t stride, const Shared& s) {
  constexpr int kN = kDim / kWarps / 8;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int column = warp * 8 * kN + g * kN;
  float acc[kN][4] = {};
#pragma unroll 4
  for (int step = first / 16; step < (limit + 15) / 16; ++step) {
    const int token = step * 16 + 2 * t;
    const auto* from = reinterpret_cast<const __half*>(s.pages[step / 4] + v_at) +
                       (token % kPageTokens) * kDim + column;
    Values<kN> v[4];
    v[0].load(from);
    v[1].load(from + kDim);
    v[2].load(from + 8 * kDim);
    v[3].load(from + 9 * kDim);
    // Past the row nothing was written yet: a weight of zero would not undo a NaN.
    if (step * 16 + 16 > limit) {
      v[0].keep(token < limit);
      v[1].keep(token + 1 < limit);
      v[2].keep(token + 8 < limit);
      v[3].keep(token + 9 < limit);
    }
    std::uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = g + i % 2 * 8;
      a[i] = head < heads
                 ? *reinterpret_cast<const std::uint32_t*>(&s.weights[head][token + i / 2 * 8])
                 : 0;
    }
#pragma unroll
    for (int m = 0; m < kN; ++m) {
      const std::uint32_t select = m % 2 == 0 ? 0x5410u : 0x7632u;
      multiply_f16(acc[m], a, permute(v[0].words[m / 2], v[1].words[m / 2], select),
                   permute(v[2].words[m / 2], v[3].words[m / 2], select));
    }
  }
#pragma unroll
  for (int m = 0; m < kN; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = g + i / 2 * 8;
      if (head < heads)
        partial[head * stride + warp * 8 * kN + (2 * t + i % 2) * kN + m] = acc[m][i];
    }
}

// Fetches the keys and values of the span's first `tokens` into L2.
template <int kDim>
__device__ __forceinline__ void prefetch_span(const KvHead& place, int tokens, const Shared& s) {
  constexpr int kLine = 128 / sizeof(__half);
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < tokens * kDim; i += kThreads * kLine) {
    const int token = i / kDim;
    const std::byte* page = s.pages[token / kPageTokens];
    const int at =
        (i - token / kPageTokens * kPageTokens * kDim) * static_cast<int>(sizeof(__half));
    prefetch_line(page + place.k + at);
    prefetch_line(page + place.v + at);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args,
                  const TESSERA_GRID_CONSTANT AttentionScratch scratch) {
  __shared__ Shared s;
  // The step's tables are older than the kernel before this one, and so are all keys and values but
  // the step's own.
  const int row = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int span = static_cast<int>(blockIdx.z), start = span * kSpanTokens;
  const int position = args.step.position[row], sequence = args.step.sequence[row];
  const int begin = first_seen(args, position), end = position + 1;
  if (start >= end || start + kSpanTokens <= begin) {
    chain_trigger();
    return;
  }
  const int heads = args.n_head / args.kv.kv_heads;
  const KvHead place = kv_head_at(args.kv, kv_head);
  const std::int64_t head = static_cast<std::int64_t>(row) * args.n_head + kv_head * heads;
  const std::int64_t stride = static_cast<std::int64_t>(scratch.spans) * (kDim + 2);
  float* partial = scratch.partials + head * stride + span * (kDim + 2);
  if (threadIdx.x < kPages) {
    // Pages that nobody sees may not be there: their place is taken by one that is.
    const int page =
        min(max(start / kPageTokens + static_cast<int>(threadIdx.x), begin / kPageTokens),
            position / kPageTokens);
    s.pages[threadIdx.x] = page_of(args, sequence, page);
  }
  __syncthreads();
  prefetch_span<kDim>(place, min(end - start, kSpanTokens), s);
  chain_wait();
  chain_trigger();
  score_tokens<kDim>(args, scratch.q + head * kDim, heads, place.k, start, begin, end, s);
  __syncthreads();
  weigh_span(heads, partial, stride, kDim, s);
  __syncthreads();
  sum_values<kDim>(heads, place.v, max(begin - start, 0), min(end - start, kSpanTokens), partial,
                   stride, s);
}

}  // namespace

bool has_decode_attention(const AttentionArgs& args) {
  const int dim = args.kv.head_dim_k;
  return args.kv.format == KvFormat::f16 && dim == args.kv.head_dim_v &&
         (dim == 64 || dim == 128 || dim == 256 || dim == 512) &&
         args.n_head / args.kv.kv_heads <= kMaxHeads && args.step.rows <= kDecodeRows;
}

GpuError attend_decode(const Launch& launch, const AttentionArgs& args,
                       const AttentionScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(args.step.rows), static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>(scratch.spans));
  const int dim = args.kv.head_dim_k;
  const auto kernel = dim == 64    ? decode_kernel<64>
                      : dim == 128 ? decode_kernel<128>
                      : dim == 256 ? decode_kernel<256>
                                   : decode_kernel<512>;
  return launch_kernel(launch, kernel, grid, dim3(kThreads), 0, args, scratch);
}

}  // namespace tessera::gpu
