// What a block does of attention in dense_run.h's kernel: query heads that share a KV head over a
// span of the context (attention_span.cuh), which it norms and turns, and whose sums it passes on
// (dense_run_attention.cuh adds them up); where the context is one span and heads are no more than
// blocks, a query head by itself, whose columns are done with that.
//
// Of a span that is a page keys and values are asked for into L2 before the projections come, and
// into registers a barrier ahead of their use: after the projections memory idles, and nothing
// should add to that.
#pragma once

#include "device/gpu/kernels/attention_head.cuh"
#include "device/gpu/kernels/attention_page.cuh"
#include "device/gpu/kernels/dense_run_ring.cuh"

namespace tessera::gpu::dense_run {

// In the place of the mixer's columns.
struct SpanRoom {
  SpanShared<kMostGroup> span;
  float heads[kRowWarps][kMostHeadDim];                    // a warp each
  alignas(16) __half q[kMostGroup][kMostHeadDim + kWarp];  // in rows of other banks
  float top[kMostGroup], weight[kMostGroup];
};
// Of a head by itself: the warps that take its gate, and where that and its sums are: places of
// heads that there are not.
inline constexpr int kGateWarps = 4, kGateAt = 3, kSumsAt = 4;
static_assert(kRowWarps - kGateWarps >= 3 && kGateAt >= 3 && kSumsAt > kGateAt &&
              kSumsAt < kRowWarps);
static_assert(kRowWarps == kPageWarps);

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ Record* partials(const Layer& l, int span, int head, int dim) {
  return records(kAt.partials) + (std::int64_t{span} * l.heads + head) * dim;
}

// A unit is what a block does at once, a KV head's span or a query head by itself: block b has
// units b, b + kBlocks, ... Warps may still read what describes the unit before; that of the one
// before that has four barriers behind it.
__device__ __forceinline__ const Span& span_of(int unit) {
  return shared()->spans[unit / kBlocks % 2];
}
__device__ __forceinline__ const std::byte** pages_of(int unit) {
  return shared()->pages[unit / kBlocks % 2];
}
__device__ __forceinline__ int context_here() {
  return shared()->sequence.first_position + 1;
}
__device__ __forceinline__ bool attends_whole(const Layer& l) {
  return spans_of(context_here()) == 1 && l.heads <= kBlocks;
}
// By a block's first threads, which find pages, too.
__device__ __forceinline__ void describe_span(int unit, const Layer& l, int i) {
  const int context = context_here(), size = span_tokens(context);
  const int group = l.heads / l.key_heads;
  Span at{.whole = attends_whole(l), .heads = group, .tokens = {0, size, 0, context}};
  if (at.whole) {
    at.heads = 1, at.first_head = unit, at.kv_head = unit / group, at.index = 0;
  } else {
    at.index = unit / l.key_heads, at.kv_head = unit - at.index * l.key_heads;
    at.first_head = at.kv_head * group, at.tokens.start = at.index * size;
  }
  at.last = at.tokens.start + size >= context;
  at.puts = at.last && at.first_head == at.kv_head * group;
  if (i == 0) shared()->spans[unit / kBlocks % 2] = at;
  if (i >= size / kPageTokens) return;
  const int page = min(at.tokens.start / kPageTokens + i, (context - 1) / kPageTokens);
  pages_of(unit)[i] = l.pool + l.page_table[page] * l.page_stride;
}
template <int kDim>
__device__ __forceinline__ KvHead head_places(const Layer& l, int kv_head) {
  return kv_head_at({l.key_heads, kDim, kDim, KvFormat::f16}, kv_head);
}

// By one warp: a head arrives and is normed and turned as the projections' part asks.
template <int kDim>
static __device__ __noinline__ void take_head(int row, const float* weight, int turns, int layer) {
  constexpr int kEach = kDim / kWarp;
  const Layer& l = LayerPlace(layer).layer();
  const int lane = run::this_lane();
  const unsigned number = number_of(layer);
  float* to = room<SpanRoom>().heads[run::this_warp()];
  const Value* from = values(kAt.in) + row + lane;
  const auto constants = load_constants<kEach>(weight, kDim, l.cos, l.sin, turns, lane);
  ValuesSeen<kEach> seen(from);
  await_all(seen, number);
  float x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = __uint_as_float(seen.v[i].x);
  put_head<kEach>(x, constants, weight != nullptr, kDim, l.head_eps, lane, to);
#pragma unroll 1
  for (int i = lane; i < turns; i += kWarp)
    turn_pair(to, i, turns, i == lane ? constants.cos : l.cos[i],
              i == lane ? constants.sin : l.sin[i]);
  __syncwarp();
}
// A head of the span: its queries, then the row's key and value, where they are asked for.
template <int kDim>
__device__ __forceinline__ void take_head_of(int i, const Span& at, int layer) {
  const Layer& l = LayerPlace(layer).layer();
  const bool query = i < at.heads, key = i == at.heads;
  const int row = query ? (at.first_head + i) * l.query_stride
                        : (key ? l.keys_at : l.values_at) + at.kv_head * kDim;
  take_head<kDim>(row, query ? l.q_norm : key ? l.k_norm : nullptr,
                  query || key ? l.turns : 0, layer);
}
// Its place in SpanRoom::heads. The last of nine or ten take places whose queries are in q by then.
__device__ __forceinline__ int head_place(int i) {
  return i % kRowWarps;
}
// Where it goes: queries to shared memory, the others to their page.
template <int kDim>
__device__ __forceinline__ void put_head_of(int i, int unit, int layer) {
  const Layer& l = LayerPlace(layer).layer();
  const Span& at = span_of(unit);
  SpanRoom& a = room<SpanRoom>();
  const float* x = a.heads[run::this_warp()];
  const int lane = run::this_lane();
  if (i < at.heads) {
    const float scale = l.scale;
#pragma unroll 1
    for (int d = lane; d < kDim; d += kWarp) a.q[i][d] = __float2half_rn(x[d] * scale);
  } else if (at.puts) {
    const KvHead place = head_places<kDim>(l, at.kv_head);
    const int own = at.tokens.end - 1 - at.tokens.start;
    auto* page = const_cast<std::byte*>(pages_of(unit)[own / kPageTokens]);
    auto* to = reinterpret_cast<__half*>(page + (i == at.heads ? place.k : place.v)) +
               own % kPageTokens * kDim;
#pragma unroll 1
    for (int d = lane; d < kDim; d += kWarp) to[d] = page_half(x[d]);
  }
  __syncwarp();
}
template <int kDim>
static __device__ __noinline__ void take_heads_of(int unit, int layer) {
  const int n = span_of(unit).heads + (span_of(unit).last ? 2 : 0);
#pragma unroll 1
  for (int i = run::this_warp(); i < n; i += kRowWarps) {
    take_head_of<kDim>(i, span_of(unit), layer);
    put_head_of<kDim>(i, unit, layer);
  }
}

// Of eight heads at most, from shared memory.
struct QueryRows {
  __device__ __forceinline__ void load(int i, QueryWords& to) const {
    const int lane = run::this_lane();
    const uint4 v =
        *reinterpret_cast<const uint4*>(&room<SpanRoom>().q[lane / 4][lane % 4 * 8 + 32 * i]);
    to[0][0] = v.x, to[0][2] = v.y, to[1][0] = v.z, to[1][2] = v.w;
    to[0][1] = to[0][3] = to[1][1] = to[1][3] = 0;
  }
};

template <int kDim>
static __device__ __noinline__ void score(int unit, int layer) {
  const Layer& l = LayerPlace(layer).layer();
  const Span& at = span_of(unit);
  SpanShared<kMostGroup>& to = room<SpanRoom>().span;
  hide_scores<kRowWarps>(at.heads, at.tokens, to);
  PageRows<kDim, true> keys{pages_of(unit), head_places<kDim>(l, at.kv_head).k};
  score_tokens<kDim, kRowWarps, 1>(QueryRows{}, keys, at.heads, 0.0f, at.tokens, to);
}
__device__ __forceinline__ void weigh_here(const Span& at) {
  SpanRoom& a = room<SpanRoom>();
  weigh_span<kRowWarps>(
      at.heads, 0, at.tokens,
      [&](int head, int i, float x) { (i == 0 ? a.top : a.weight)[head] = x; }, a.span);
}
static __device__ __noinline__ void weigh(int unit) {
  weigh_here(span_of(unit));
}
// `to`: where the sums of the span's first head go.
template <int kDim>
__device__ __forceinline__ void pass_sum(Record* to, int head, int column, float sum, int layer) {
  const SpanRoom& a = room<SpanRoom>();
  run::pass_record(to + head * kDim + column, __float_as_uint(sum), __float_as_uint(a.top[head]),
                   __float_as_uint(a.weight[head]), number_of(layer));
}
template <int kDim>
static __device__ __noinline__ void pass_values(int unit, int layer) {
  const Layer& l = LayerPlace(layer).layer();
  const Span& at = span_of(unit);
  Record* to = partials(l, at.index, at.first_head, kDim);
  PageRows<kDim, true> rows{pages_of(unit), head_places<kDim>(l, at.kv_head).v};
  sum_values<kDim, kRowWarps, 1>(
      rows, at.heads, at.tokens,
      [&](int head, int column, float sum) { pass_sum<kDim>(to, head, column, sum, layer); },
      room<SpanRoom>().span);
}

// --- A span that is a page ---

// Columns of a head's gate, by a warp.
template <int kDim>
static __device__ __noinline__ void take_gate(int head, int column, int layer) {
  const Layer& l = LayerPlace(layer).layer();
  constexpr int kEach = kDim / kGateWarps / kWarp;
  const int lane = run::this_lane();
  float* to = room<SpanRoom>().heads[kGateAt] + column + lane;
  if (l.gated == 0) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) to[i * kWarp] = 1.0f;
    return;
  }
  ValuesSeen<kEach> seen(values(kAt.in) + head * l.query_stride + kDim + column + lane);
  await_all(seen, number_of(layer));
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[i * kWarp] = sigmoid(__uint_as_float(seen.v[i].x));
}
// A whole head's columns, as combine() has them of one span.
template <int kDim>
__device__ __forceinline__ void pass_whole(int head, int layer) {
  const SpanRoom& a = room<SpanRoom>();
  row_warps_sync();
  const int warp = run::this_warp(), lane = run::this_lane(), column = warp * kWarp + lane;
  if (warp >= kDim / kWarp) return;
  const float x = a.heads[kSumsAt][column] / a.weight[0] * a.heads[kGateAt][column];
  run::pass_group_here(x, 0.0f, number_of(layer), lane,
                       records(kAt.heads) + (head * (kDim / kWarp) + warp) * 4);
}

// So many of the page's tokens are older than the row: all, unless its own is among them.
__device__ __forceinline__ int end_of_old(const Span& at) {
  return at.last ? at.tokens.end - 1 - at.tokens.start : kPageTokens;
}
// Asks for keys and values into L2, and waits for heads.
template <int kDim>
static __device__ __noinline__ void take_page(int unit, int layer) {
  const Span& at = span_of(unit);
  const KvHead place = head_places<kDim>(LayerPlace(layer).layer(), at.kv_head);
  const int bytes = end_of_old(at) * kDim * static_cast<int>(sizeof(__half));
  static_assert(kPageTokens * kDim * sizeof(__half) <= kLine * kRowWarps * kWarp);
  const int thread = static_cast<int>(threadIdx.x), warp = run::this_warp();
  prefetch_lines(pages_of(unit)[0] + place.k, bytes, thread);
  prefetch_lines(pages_of(unit)[0] + place.v, bytes, thread);
  if (at.whole && warp >= kRowWarps - kGateWarps)
    take_gate<kDim>(at.first_head, (warp - (kRowWarps - kGateWarps)) * (kDim / kGateWarps), layer);
  else
    take_heads_of<kDim>(unit, layer);
}
template <int kDim>
static __device__ __noinline__ void attend_page(int unit, int layer) {
  const int warp = run::this_warp(), lane = run::this_lane();
  SpanRoom& a = room<SpanRoom>();
  const Layer& l = LayerPlace(layer).layer();
  const Span& at = span_of(unit);
  const KvHead place = head_places<kDim>(l, at.kv_head);
  const int own = end_of_old(at);
  {
    PageKeys<kDim> keys;
    keys.load({pages_of(unit), place.k}, own, warp, lane);
    row_warps_sync();  // heads are there
    if (at.last) keys.put(a.heads[head_place(at.heads)], own, warp, lane);
    hide_scores<kRowWarps>(at.heads, at.tokens, a.span);
    if (at.tokens.sees_eight(warp * 8))
      score_eight<kDim>(QueryRows{}, keys.of, at.heads, 0.0f, at.tokens, warp * 8, a.span);
  }
  PageValues<kDim> held;
  held.load({pages_of(unit), place.v}, own, lane);
  row_warps_sync();
  weigh_here(at);
  row_warps_sync();
  if (at.last) held.put(a.heads[head_place(at.heads + 1)], own, lane);
  ValueSum<kDim, kRowWarps> sum;
  const int seen = min(at.tokens.end - at.tokens.start, kPageTokens);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    if (4 * step < seen) sum.add(held.of[step], at.heads, 16 * (lane % 4) + 4 * step, a.span);
  if (at.whole) {
    sum.give(1, [&](int, int column, float x) { a.heads[kSumsAt][column] = x; });
    pass_whole<kDim>(at.first_head, layer);
    return;
  }
  Record* to = partials(l, at.index, at.first_head, kDim);
  sum.give(at.heads, [&](int head, int column, float x) {
    pass_sum<kDim>(to, head, column, x, layer);
  });
}

// A span of several pages.
template <int kDim>
__device__ __forceinline__ void attend_pages(int unit, int layer) {
  take_heads_of<kDim>(unit, layer);
  row_warps_sync();
  score<kDim>(unit, layer);
  row_warps_sync();
  weigh(unit);
  row_warps_sync();
  pass_values<kDim>(unit, layer);
}

#endif

}  // namespace tessera::gpu::dense_run
