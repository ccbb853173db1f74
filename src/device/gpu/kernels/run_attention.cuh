// Attention of one layer in run.h's kernel: spans of 256 tokens by blocks (attention_span.cuh),
// whose partial results the workers add up, 32 columns of a head each.
#pragma once

#include "device/gpu/kernels/attention_head.cuh"
#include "device/gpu/kernels/run_mixer.cuh"

namespace tessera::gpu::run {

#ifdef TESSERA_GPU_WGMMA

struct Span {
  int kv_head, index, spans;
  __device__ __forceinline__ int first_page() const { return index * kSpanPages; }
  __device__ __forceinline__ bool last() const { return index + 1 == spans; }
};
// The unit-th of a step; `index` at `spans` or above: there is none.
__device__ __forceinline__ Span span_of(const Shared* s, int unit) {
  return {unit % kKvHeads, unit / kKvHeads, s->sequence.first_position / kSpanTokens + 1};
}
__device__ __forceinline__ KvHead page_places(int kv_head) {
  return kv_head_at({kKvHeads, kHeadDim, kHeadDim, KvFormat::f16}, kv_head);
}
// Behind the row's own page there is none: its place is taken by that.
__device__ __forceinline__ std::byte* page_at(const Layer& l, int position, int page) {
  const int id = l.page_table[min(page, position / kPageTokens)];
  return l.pool + id * l.page_stride;
}

// The keys and values of the block's first span into L2, while the projections are made.
__device__ __forceinline__ void prefetch_pages(const Warp& w, const Layer& l) {
  const Span span = span_of(w.s, static_cast<int>(blockIdx.x));
  if (span.index >= span.spans) return;
  const int position = w.s->sequence.first_position;
  const KvHead place = page_places(span.kv_head);
  constexpr int kLines = kHeadDim * 2 / 128;  // a token
  const int tokens = min(position + 1 - span.index * kSpanTokens, kSpanTokens);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < tokens * kLines; i += kReaders * kWarp) {
    const int token = i / kLines;
    const std::byte* at = page_at(l, position, span.first_page() + token / kPageTokens) +
                          (i - token / kPageTokens * kPageTokens * kLines) * 128;
    prefetch_line(at + place.k);
    prefetch_line(at + place.v);
  }
}

// By one warp: a head arrives, is normed and turned where it has a norm, and left in `to`.
static __device__ __noinline__ void take_head(const Value* from, const float* weight,
                                              const Layer& l, unsigned number, float* to) {
  constexpr int kEach = kHeadDim / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int turns = weight != nullptr ? l.turns : 0;
  const auto constants = load_constants<kEach>(weight, kHeadDim, l.cos, l.sin, turns, lane);
  float x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = await_value(from + i * kWarp + lane, number);
  __syncwarp();
  put_head<kEach>(x, constants, weight != nullptr, kHeadDim, l.eps, lane, to);
  if (lane < turns) turn_pair(to, lane, turns, constants.cos, constants.sin);
  __syncwarp();
}

// The row's queries of the span's heads; where the span ends with the row, its key and value go to
// their page too.
__device__ __forceinline__ void take_heads(Warp& w, const Layer& l, const Span& span) {
  AttentionShared& a = w.s->attention;
  const int position = w.s->sequence.first_position;
  if (w.warp == kReaders - 1 && w.lane < kSpanPages)
    a.span.pages[w.lane] = page_at(l, position, span.first_page() + w.lane);
  const int which = w.warp - kGroupHeads;  // 0: the key, 1: the value
  if (which > 1 || (which >= 0 && !span.last())) return;
  const int from = which < 0 ? (span.kv_head * kGroupHeads + w.warp) * 2 * kHeadDim
                             : (which == 0 ? kKeysAt : kValuesAt) + span.kv_head * kHeadDim;
  float* x = a.heads[w.warp];
  take_head(w.passed.in() + from,
            which < 0    ? l.q_norm
            : which == 0 ? l.k_norm
                         : nullptr,
            l, w.number, x);
  const KvHead place = page_places(span.kv_head);
  __half* to = a.q[w.warp];
  if (which >= 0)
    to = reinterpret_cast<__half*>(page_at(l, position, position / kPageTokens) +
                                   (which == 0 ? place.k : place.v)) +
         position % kPageTokens * kHeadDim;
#pragma unroll 1
  for (int i = w.lane; i < kHeadDim; i += kWarp)
    to[i] = which < 0 ? __float2half_rn(x[i] * l.scale) : page_half(x[i]);
}

// Of eight heads, from shared memory.
struct QueryRows {
  const __half* row;  // the lane's
  __device__ __forceinline__ void load(int i, QueryWords& to) const {
    const uint4 v = *reinterpret_cast<const uint4*>(row + 32 * i);
    to[0][0] = v.x, to[0][2] = v.y, to[1][0] = v.z, to[1][2] = v.w;
    to[0][1] = to[0][3] = to[1][1] = to[1][3] = 0;
  }
};

__device__ __forceinline__ void attend(Warp& w, const Layer& l) {
  AttentionShared& a = w.s->attention;
  const int position = w.s->sequence.first_position;
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x);; unit += kBlocks) {
    const Span span = span_of(w.s, unit);
    if (span.index >= span.spans) return;
    const KvHead place = page_places(span.kv_head);
    const SpanTokens tokens{span.index * kSpanTokens, 0, position + 1};
    Value* to = w.passed.partials() +
                (span.index * kQueryHeads + span.kv_head * kGroupHeads) * std::int64_t{kPartial};
    const auto put = [&](int head, int at, float value) {
      pass_value(to + head * kPartial + at, value, w.number);
    };
    readers_sync();  // the span before has been read
    take_heads(w, l, span);
    readers_sync();
    const QueryRows queries{a.q[w.lane / 4] + w.lane % 4 * 8};
    if (has_scores<kReaders>(tokens))
      score_tokens<kHeadDim, kReaders>(queries, kGroupHeads, place.k, 0.0f, tokens, a.span);
    else
      hide_scores<kReaders>(kGroupHeads, a.span);
    readers_sync();
    weigh_span<kReaders>(kGroupHeads, kHeadDim, put, a.span);
    readers_sync();
    sum_values<kHeadDim, kReaders>(kGroupHeads, place.v, tokens, put, a.span);
  }
}

// Workers: the spans' sums, first span first, as combine_spans() adds them.
__device__ __forceinline__ void combine(Warp& w, const Layer& l) {
  AttentionShared& a = w.s->attention;
  constexpr int kEach = kHeadDim / kGroup;
  const int block = static_cast<int>(blockIdx.x), head = block / kEach;
  const int first = block % kEach * kGroup;
  const int spans = w.s->sequence.first_position / kSpanTokens + 1;
  const auto partial = [&](int span) {
    return w.passed.partials() + (span * kQueryHeads + head) * std::int64_t{kPartial};
  };
  float top = -INFINITY, sum = 0, value = 0, gate = 0;
  readers_sync();  // the block's own spans have been read
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < spans; i += kReaders * kWarp)
    top = fmaxf(top, await_value(partial(i) + kHeadDim, w.number));
  top = warp_max(top);
  if (w.lane == 0) a.tops[w.warp] = top;
  if (w.warp == 0)
    gate =
        sigmoid(await_value(w.passed.in() + (head * 2 + 1) * kHeadDim + first + w.lane, w.number));
#pragma unroll 1
  for (int start = 0; start < spans; start += kSpansAtOnce) {
    const int n = min(kSpansAtOnce, spans - start);
    if (start > 0) readers_sync();
#pragma unroll 1
    for (int i = w.warp; i < n; i += kReaders) {
      const Value* from = partial(start + i);
      a.partials.values[i][w.lane] = await_value(from + first + w.lane, w.number);
      if (w.lane == 0) a.partials.top[i] = await_value(from + kHeadDim, w.number);
      if (w.lane == 1) a.partials.weight[i] = await_value(from + kHeadDim + 1, w.number);
    }
    readers_sync();
    if (w.warp != 0) continue;
#pragma unroll
    for (int i = 0; i < kReaders; ++i) top = fmaxf(top, a.tops[i]);
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      factor[i] = i * kWarp + w.lane < n ? expf(a.partials.top[i * kWarp + w.lane] - top) : 0.0f;
#pragma unroll 4
    for (int i = 0; i < n; ++i) {
      const float f = shuffle(i < kWarp ? factor[0] : factor[1], i % kWarp);
      sum = fmaf(a.partials.weight[i], f, sum);
      value = fmaf(a.partials.values[i][w.lane], f, value);
    }
  }
  if (w.warp != 0) return;
  pass_group(group_of_lanes(value / sum * gate, w.lane), 0.0f, w.number, w.lane,
             w.passed.heads() + block * 4);
}

#endif

}  // namespace tessera::gpu::run
