// What the kernels of attention of many rows share: a block's part of the work, its tiles in shared
// memory, and the arithmetic between the two products.
//
// A block takes 128 (row, head) pairs of one KV head: consecutive rows times the heads that share
// it; a warp 16 of them. Tiles are blocks of 64 halves a row, [columns / 64][rows][128 bytes], each
// in the 128-byte swizzle (warpgroup.cuh).
#pragma once

#include "device/gpu/kernels/attention.cuh"
#include "device/gpu/kernels/shared_memory.cuh"

namespace tessera::gpu {

inline constexpr int kPrefillThreads = 256;
inline constexpr int kPairs = kPrefillThreads / kWarp * 16;

template <int kDim>
inline constexpr int kQueryBytes = kPairs* kDim * 2;
template <int kDim>
inline constexpr int kPageBytes = kPageTokens* kDim * 2;

// Where 16-byte piece `piece` of a row stands in a tile of kRows rows.
template <int kRows>
__device__ __forceinline__ int piece_at(int row, int piece) {
  return (piece / 8 * kRows + row) * 128 + (piece % 8 ^ row % 8) * 16;
}

// The pairs of a block and the pages that they see.
struct PrefillBlock {
  Sequence sequence;
  int index, heads, kv_head;
  int first_pair, pairs;  // pair / heads is a row of the sequence; none: nothing to do
  int oldest, newest;     // positions of its rows
  int begin, end;         // pages
  KvHead place;

  __device__ explicit PrefillBlock(const AttentionArgs& args)
      : sequence(args.step.sequences[blockIdx.z]),
        index(static_cast<int>(blockIdx.z)),
        heads(args.n_head / args.kv.kv_heads),
        kv_head(static_cast<int>(blockIdx.x)) {
    // The longest first: later rows see more.
    first_pair = (static_cast<int>(gridDim.y) - 1 - static_cast<int>(blockIdx.y)) * kPairs;
    pairs = min(kPairs, sequence.n_rows * heads - first_pair);
    oldest = sequence.first_position + first_pair / heads;
    newest = sequence.first_position + (first_pair + pairs - 1) / heads;
    begin = first_seen(args, oldest) / kPageTokens;
    end = newest / kPageTokens + 1;
    place = kv_head_at(args.kv, kv_head);
  }
  __device__ int row(int pair) const { return sequence.first_row + (first_pair + pair) / heads; }
  __device__ int head(int pair) const { return kv_head * heads + (first_pair + pair) % heads; }
  // Tokens of a page that are there.
  __device__ int valid(int page) const {
    return min(kPageTokens, sequence.first_position + sequence.n_rows - page * kPageTokens);
  }
  // Whether every row of the block sees all of a page.
  __device__ bool sees_all(const AttentionArgs& args, int page) const {
    return (page + 1) * kPageTokens - 1 <= oldest && page * kPageTokens >= first_seen(args, newest);
  }
};

// The queries of the block; zeros past its pairs.
template <int kDim>
__device__ __forceinline__ void copy_queries(char* to, const AttentionArgs& args,
                                             const PrefillBlock& block, const __half* q) {
  constexpr int kPieces = kDim / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kPairs * kPieces; i += kPrefillThreads) {
    const int pair = i / kPieces, piece = i % kPieces, there = min(pair, block.pairs - 1);
    const std::int64_t at = std::int64_t{block.row(there)} * args.n_head + block.head(there);
    copy_async(to + piece_at<kPairs>(pair, piece), q + at * kDim + piece * 8, pair < block.pairs);
  }
}

// A page's keys or values; zeros from token `valid` on. Each pass takes rows by eights, so that a
// thread's pieces stand in one place of the swizzle.
template <int kDim>
__device__ __forceinline__ void copy_page(char* to, const std::byte* from, int valid) {
  constexpr int kPieces = kDim / 8, kRows = kPrefillThreads / kPieces;
  static_assert(kRows % 8 == 0);
  const int row = static_cast<int>(threadIdx.x) / kPieces;
  to += piece_at<kPageTokens>(row, static_cast<int>(threadIdx.x) % kPieces);
  from += threadIdx.x * 16;
#pragma unroll
  for (int i = 0; i < kPageTokens / kRows; ++i)
    copy_async(to + i * kRows * 128, from + i * kPrefillThreads * 16, row + i * kRows < valid);
}

// What a thread knows of its two pairs (rows g and g + 8 of the warp's matrix). Weights are powers
// of two: `top` is the highest score so far times log2(e), `sum` this lane's part of the weights.
struct Pairs {
  int pair[2], position[2];
  float top[2], sum[2];

  __device__ explicit Pairs(const PrefillBlock& block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      pair[half] = static_cast<int>(threadIdx.x) / kWarp * 16 +
                   static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * half;
      position[half] = block.sequence.first_position +
                       (block.first_pair + min(pair[half], block.pairs - 1)) / block.heads;
      top[half] = -INFINITY;
      sum[half] = 0;
    }
  }
};

// 2^x; of minus infinity 0.
__device__ __forceinline__ float power_of_two(float x) {
#ifdef TESSERA_GPU_PTX
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// What the pair does not see of the page that starts at token `start`.
__device__ __forceinline__ void hide_unseen(const AttentionArgs& args, int start, const Pairs& p,
                                            float (&scores)[8][4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int last = p.position[half] - start, first = first_seen(args, p.position[half]) - start;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 8 * j + 2 * t + i;
        if (token > last || token < first) scores[j][2 * half + i] = -INFINITY;
      }
  }
}

// Scores to weights; the sums so far shrink by factor[half].
__device__ __forceinline__ void weigh_page(const AttentionArgs& args, const PrefillBlock& block,
                                           int page, Pairs& p, float (&scores)[8][4],
                                           float (&factor)[2]) {
  constexpr float kLog2E = 1.44269504f;
  if (args.softcap > 0) {
    const float inverse = 1.0f / args.softcap;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = args.softcap * tanhf(scores[j][i] * inverse);
  }
  if (!block.sees_all(args, page)) hide_unseen(args, page * kPageTokens, p, scores);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = scores[0][2 * half];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      top = fmaxf(top, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
    top = fmaxf(top, shuffle_xor(top, 1));
    top = fmaxf(top, shuffle_xor(top, 2));
    top = fmaxf(p.top[half], top * kLog2E);
    const float base = top == -INFINITY ? 0.0f : top;  // nothing seen yet
    factor[half] = power_of_two(p.top[half] - base);
    p.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[j][2 * half + i];
        score = power_of_two(fmaf(score, kLog2E, -base));
        sum += score;
      }
    p.sum[half] = p.sum[half] * factor[half] + sum;
  }
}

template <int kDim>
__device__ __forceinline__ void shrink(const float (&factor)[2], float (&out)[kDim / 8][4]) {
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[j][i] *= factor[i / 2];
}

// The left operand of 16 tokens' values.
__device__ __forceinline__ void weights_of(const float (&weights)[8][4], int step,
                                           std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&w)[4] = weights[2 * step + i / 2];
    a[i] = as_bits(__floats2half2_rn(w[2 * (i % 2)], w[2 * (i % 2) + 1]));
  }
}

// Piece `piece`, 16 bytes, of a row of sums in shared memory. The swizzle spreads half a warp,
// which writes 8 bytes a lane of four rows, over all banks.
template <int kDim>
__device__ __forceinline__ char* sums_at(char* sums, int row, int piece) {
  return sums + row * kDim * 4 + (piece ^ row % 4 * 2) * 16;
}

// The sums divided by the weights, into shared memory; a gate of the whole head is applied.
template <int kDim>
__device__ __forceinline__ void put_sums(const AttentionArgs& args, const PrefillBlock& block,
                                         const Pairs& p, const float (&out)[kDim / 8][4],
                                         char* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = p.sum[half];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    float factor = 1.0f / sum;
    if (!has_element_gates(args.gate)) {
      const int pair = min(p.pair[half], block.pairs - 1);
      factor *= gate_factor(args, block.row(pair), block.head(pair), 0);
    }
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j)
      *reinterpret_cast<float2*>(sums_at<kDim>(sums, lane / 4 + 8 * half, 2 * j + t / 2) +
                                 t % 2 * 8) =
          make_float2(out[j][2 * half] * factor, out[j][2 * half + 1] * factor);
  }
}

__device__ __forceinline__ float4 gated_by(OutputGate gate, float4 x, float4 z) {
  return {x.x * opened(gate, z.x), x.y * opened(gate, z.y), x.z * opened(gate, z.z),
          x.w * opened(gate, z.w)};
}

// What the warp leaves in args.out. It goes by way of shared memory, 64 * kDim bytes from the place
// of row `at_row` on, which nobody reads any more, so that a warp reads gates and writes sums in
// whole lines.
template <int kDim>
__device__ __forceinline__ void store_pairs(const AttentionArgs& args, const PrefillBlock& block,
                                            const Pairs& p, const float (&out)[kDim / 8][4],
                                            int at_row, char* shared) {
  constexpr int kPieces = kDim / 4, kAtOnce = 8;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool gated = has_element_gates(args.gate);
  char* sums = shared + at_row * kDim * 4;
  put_sums<kDim>(args, block, p, out, sums);
  __syncwarp();
#pragma unroll 1
  for (int first = 0; first < 16 * kPieces; first += kAtOnce * kWarp) {
    int pair[kAtOnce], d[kAtOnce];
    float4 gates[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kWarp + lane;
      pair[i] = warp * 16 + at / kPieces;
      d[i] = at % kPieces * 4;
      if (gated && pair[i] < block.pairs)
        gates[i] = *reinterpret_cast<const float4*>(
            element_gates(args, block.row(pair[i]), block.head(pair[i])) + d[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (pair[i] >= block.pairs) continue;
      float4 value = *reinterpret_cast<float4*>(sums_at<kDim>(sums, pair[i] % 16, d[i] / 4));
      if (gated) value = gated_by(args.gate, value, gates[i]);
      *reinterpret_cast<float4*>(args.out + block.row(pair[i]) * args.out_stride +
                                 block.head(pair[i]) * kDim + d[i]) = value;
    }
  }
}

}  // namespace tessera::gpu
