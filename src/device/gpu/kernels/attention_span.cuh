// Attention of one row over one span of f16 pages, by a block: what a row's own kernels
// (attention_decode.cu, attention_short.cu) and a run of layers (run_attention.cuh) share, so that
// all make the same bits.
//
// The query heads that share the KV head are the rows of a matrix instruction. Scores: the warps
// divide the tokens by eights, keys in 16-byte pieces. Values: the warps divide the head's width,
// all tokens each. Where both lie, Rows says (PageRows; a run's are in shared memory): a warp asks
// for pages in rising order, and for the next one when it has read the one before. The block waits
// for itself between the steps:
//
//   hide_scores<kWarps>(heads, tokens, s);
//   score_tokens<kDim, kWarps, kUnroll>(queries, keys, heads, softcap, tokens, s);
//   weigh_span<kWarps>(heads, kDim, tokens, put, s);  // put(head, kDim or kDim + 1, value)
//   sum_values<kDim, kWarps, kUnroll>(values, heads, tokens, put, s);   // put(head, column, value)
//
// Who has keys and values at hand takes the steps within: score_eight(), ValueSum.
#pragma once

#include "device/gpu/kernels/attention.cuh"
#include "device/gpu/kernels/halves.cuh"

namespace tessera::gpu {

inline constexpr int kSpanPages = kMostSpanTokens / kPageTokens;

template <int kMostHeads>
struct SpanShared {
  float scores[kMostHeads][kMostSpanTokens + 4];
  alignas(8) __half weights[kMostHeads][kMostSpanTokens + 4];
};
// The span's first token, how many it has (span_tokens() in sizes.h), and those that the row sees.
struct SpanTokens {
  int start, size, begin, end;
  // Whether the row sees any of the eight from number `at` of the span on.
  __device__ __forceinline__ bool sees_eight(int at) const {
    return at < size && start + at < end && start + at + 8 > begin;
  }
};

// Where keys or values lie. kWritten: some of them the block itself has written.
template <int kDim, bool kWritten = false>
struct PageRows {
  const std::byte* const* pages;
  std::int64_t at;  // from a page to the head's
  // Halves from sixteen tokens of a page to the next.
  static constexpr int kSixteen = 16 * kDim;
  // [token of the page][kDim]
  __device__ __forceinline__ const __half* page(int page) const {
    return reinterpret_cast<const __half*>(pages[page] + at);
  }
  template <typename T>
  __device__ __forceinline__ static T read(const T* from) {
    if constexpr (kWritten)
      return *from;
    else
      return load_stream(from);
  }
};

// A's operands for dimensions 32i .. + 31 of the query heads: lane (g, t) has 8t .. + 7 of heads g
// and g + 8.
using QueryWords = std::uint32_t[2][4];

// From f32, [heads][kDim].
template <int kDim>
struct QueryHeads {
  const float* q;
  int heads, lane;
  __device__ __forceinline__ void load(int i, QueryWords& to) const {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = g + 8 * half;
      float4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
      if (head < heads) {
        const float4* at = reinterpret_cast<const float4*>(q + head * kDim + 32 * i + 8 * t);
        low = at[0], high = at[1];
      }
      to[0][half] = as_bits(__floats2half2_rn(low.x, low.y));
      to[0][2 + half] = as_bits(__floats2half2_rn(low.z, low.w));
      to[1][half] = as_bits(__floats2half2_rn(high.x, high.y));
      to[1][2 + half] = as_bits(__floats2half2_rn(high.z, high.w));
    }
  }
};
// The same, all at once.
template <int kDim>
struct QueryRegisters {
  __device__ __forceinline__ QueryRegisters(const QueryHeads<kDim>& from) {
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) from.load(i, a[i]);
  }
  __device__ __forceinline__ void load(int i, QueryWords& to) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j / 4][j % 4] = a[i][j / 4][j % 4];
  }
  QueryWords a[kDim / 32];
};

// A warp has every kWarps-th eight of the span's tokens: numbers 8 * warp, 8 * (warp + kWarps) ...
template <int kWarps>
__device__ __forceinline__ bool has_scores(const SpanTokens& tokens) {
  bool has = false;
  for (int at = static_cast<int>(threadIdx.x) / kWarp * 8; at < tokens.size; at += 8 * kWarps)
    has = has || tokens.sees_eight(at);
  return has;
}
// In place of the scores of eights that the row does not see.
template <int kWarps, int kMostHeads>
__device__ __forceinline__ void hide_scores(int heads, const SpanTokens& tokens,
                                            SpanShared<kMostHeads>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x) / kWarp * 8; at < tokens.size; at += 8 * kWarps) {
    if (tokens.sees_eight(at)) continue;
#pragma unroll 1
    for (int head = lane / 8; head < heads; head += kWarp / 8)
      s.scores[head][at + lane % 8] = -INFINITY;
  }
}

// Scores of eight tokens, from number `first` of the span on. Of token `first` + g lane (g, t) has
// the key's dimensions 32i + 8t .. + 7.
template <int kDim, int kMostHeads, typename Queries>
__device__ __forceinline__ void score_eight(const Queries& queries, const uint4 (&k)[kDim / 32],
                                            int heads, float softcap, const SpanTokens& tokens,
                                            int first, SpanShared<kMostHeads>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  float d[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    QueryWords a;
    queries.load(i, a);
    multiply_f16(d, a[0], k[i].x, k[i].y);
    multiply_f16(d, a[1], k[i].z, k[i].w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int head = g + i / 2 * 8, at = first + 2 * t + i % 2;
    float score = d[i];
    if (softcap > 0) score = softcap * tanhf(score / softcap);
    const bool seen = tokens.start + at >= tokens.begin && tokens.start + at < tokens.end;
    if (head < heads) s.scores[head][at] = seen ? score : -INFINITY;
  }
}

// Scores of the warp's eights that the row sees.
template <int kDim, int kWarps, int kUnroll, int kMostHeads, typename Queries, typename Rows>
__device__ __forceinline__ void score_tokens(const Queries& queries, Rows& keys, int heads,
                                             float softcap, const SpanTokens& tokens,
                                             SpanShared<kMostHeads>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  int first = static_cast<int>(threadIdx.x) / kWarp * 8;
  while (first < tokens.size && tokens.start + first + 8 <= tokens.begin) first += 8 * kWarps;
  const int end = min(tokens.size, tokens.end - tokens.start);
#pragma unroll kUnroll
  for (; first < end; first += 8 * kWarps) {
    const auto* from = reinterpret_cast<const uint4*>(
        keys.page(first / kPageTokens) + first % kPageTokens / 16 * Rows::kSixteen +
        (first % 16 + g) * kDim + 8 * t);
    uint4 k[kDim / 32];
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) k[i] = keys.read(from + 4 * i);
    score_eight<kDim>(queries, k, heads, softcap, tokens, first, s);
  }
}

// One warp a head: weights, their top and sum.
template <int kWarps, int kMostHeads, typename Put>
__device__ __forceinline__ void weigh_span(int heads, int dims, const SpanTokens& tokens, Put put,
                                           SpanShared<kMostHeads>& s) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int head = warp; head < heads; head += kWarps) {
    float top = -INFINITY, sum = 0;
#pragma unroll 2
    for (int i = lane; i < tokens.size; i += kWarp) top = fmaxf(top, s.scores[head][i]);
    top = warp_max(top);
#pragma unroll 2
    for (int i = lane; i < tokens.size; i += kWarp) {
      const __half w = __float2half_rn(expf(s.scores[head][i] - top));
      s.weights[head][i] = w;
      sum += __half2float(w);
    }
    sum = warp_sum(sum);
    if (lane < 2) put(head, dims + lane, lane == 0 ? top : sum);
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
  template <typename Rows>
  __device__ __forceinline__ void load(const Rows& rows, const __half* at) {
    if constexpr (kN == 1) {
      words[0] = *reinterpret_cast<const std::uint16_t*>(at);
    } else if constexpr (kN == 2) {
      words[0] = rows.read(reinterpret_cast<const std::uint32_t*>(at));
    } else if constexpr (kN == 4) {
      const uint2 v = rows.read(reinterpret_cast<const uint2*>(at));
      words[0] = v.x, words[1] = v.y;
    } else {
      const uint4 v = rows.read(reinterpret_cast<const uint4*>(at));
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    }
  }
};

// A warp's columns of the weighted sum of values. Lane g's kN columns are its share of as many
// operands; of a page's tokens lane t has the t-th sixteen, four a step.
template <int kDim, int kWarps>
struct ValueSum {
  static constexpr int kN = kDim / kWarps / 8;
  static __device__ __forceinline__ int first_column() {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    return warp * 8 * kN + static_cast<int>(threadIdx.x) % kWarp / 4 * kN;
  }
  // Four tokens from number `at` of the span on.
  template <int kMostHeads>
  __device__ __forceinline__ void add(const Values<kN> (&v)[4], int heads, int at,
                                      const SpanShared<kMostHeads>& s) {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
    std::uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = g + i * 8;
      uint2 four = {0, 0};
      if (head < heads) four = *reinterpret_cast<const uint2*>(&s.weights[head][at]);
      a[i] = four.x, a[2 + i] = four.y;
    }
#pragma unroll
    for (int m = 0; m < kN; ++m) {
      const std::uint32_t select = m % 2 == 0 ? 0x5410u : 0x7632u;
      multiply_f16(acc[m], a, permute(v[0].words[m / 2], v[1].words[m / 2], select),
                   permute(v[2].words[m / 2], v[3].words[m / 2], select));
    }
  }
  template <typename Put>
  __device__ __forceinline__ void give(int heads, Put put) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < kN; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = g + i / 2 * 8;
        if (head < heads) put(head, warp * 8 * kN + (2 * t + i % 2) * kN + m, acc[m][i]);
      }
  }
  float acc[kN][4] = {};
};

template <int kDim, int kWarps, int kUnroll, int kMostHeads, typename Rows, typename Put>
__device__ __forceinline__ void sum_values(Rows& values, int heads, const SpanTokens& tokens,
                                           Put put, const SpanShared<kMostHeads>& s) {
  using Sum = ValueSum<kDim, kWarps>;
  const int t = static_cast<int>(threadIdx.x) % 4, column = Sum::first_column();
  const int first = max(tokens.begin - tokens.start, 0);
  const int limit = min(tokens.end - tokens.start, tokens.size);
  Sum sum;
#pragma unroll 1
  for (int page = first / kPageTokens; page * kPageTokens < limit; ++page) {
    const __half* from = values.page(page) + t * Rows::kSixteen + column;
    const int seen = limit - page * kPageTokens;
#pragma unroll kUnroll
    for (int step = 0; step < min(4, (seen + 3) / 4); ++step) {
      const int token = 16 * t + 4 * step;  // of the page; the lane's four
      Values<Sum::kN> v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i].load(values, from + (4 * step + i) * kDim);
      // Past the row nothing was written yet: a weight of zero would not undo a NaN.
      if (seen < kPageTokens) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i].keep(token + i < seen);
      }
      sum.add(v, heads, page * kPageTokens + token, s);
    }
  }
  sum.give(heads, put);
}

}  // namespace tessera::gpu
