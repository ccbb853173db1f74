// Attention of a layer in dense_run.h's kernel, by the eight warps that bring rows: spans (sizes.h)
// by blocks (attention_span.cuh), whose partial results blocks add up, 32 columns of a head each.
// Results have the bits of attention().
#pragma once

#include "device/gpu/kernels/attention_head.cuh"
#include "device/gpu/kernels/dense_run_ring.cuh"

namespace tessera::gpu::dense_run {

// One after the other in the place of the mixer's columns.
inline constexpr int kSpansAtOnce = 64, kTeams = 2, kTeamWarps = kRowWarps / kTeams;
struct SpanRoom {
  SpanShared<kMostGroup> span;
  float heads[kRowWarps][kMostHeadDim];                    // a warp each
  alignas(16) __half q[kMostGroup][kMostHeadDim + kWarp];  // in rows of other banks
  float top[kMostGroup], weight[kMostGroup];
};
struct SumRoom {
  float values[kTeams][kSpansAtOnce][kWarp];
  float top[kTeams][kSpansAtOnce], weight[kTeams][kSpansAtOnce];
  float tops[kTeams][kTeamWarps], gate[kTeams][kWarp];
};

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ Record* partials(const Layer& l, int span, int head, int dim) {
  return records(kAt.partials) + (std::int64_t{span} * l.heads + head) * dim;
}

// A KV head's span, of which blocks have numbers.
struct SpanPlace {
  int group, kv_head, size;
  SpanTokens tokens;
  __device__ __forceinline__ SpanPlace(int unit, const Layer& l)
      : group(l.heads / l.key_heads), kv_head(unit % l.key_heads) {
    const int context = shared()->sequence.first_position + 1, index = unit / l.key_heads;
    size = span_tokens(context);
    tokens = {index * size, size, 0, context};
  }
  __device__ __forceinline__ bool here() const { return tokens.start < tokens.end; }
  __device__ __forceinline__ bool last() const { return tokens.start + size >= tokens.end; }
  __device__ __forceinline__ int index() const { return tokens.start / size; }
};
// Its pages. Warps may still read those of the span before; those of the one before that have four
// barriers behind them.
__device__ __forceinline__ const std::byte** pages_of(int unit) {
  return shared()->pages[unit / kBlocks % 2];
}
template <int kDim>
__device__ __forceinline__ KvHead head_places(const Layer& l, int kv_head) {
  return kv_head_at({l.key_heads, kDim, kDim, KvFormat::f16}, kv_head);
}

// A lane's values of 32 each, all asked for at once. Not called, as await_value() is: what calls a
// function with few registers left makes all who call it save theirs.
template <int kN>
__device__ __forceinline__ void await_values(const Value* from, unsigned number, int lane,
                                             float (&to)[kN]) {
  Value seen[kN];
#pragma unroll
  for (int i = 0; i < kN; ++i) seen[i] = run::look_at(from + i * kWarp + lane);
  const auto here = [&] {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kN; ++i) all = all && seen[i].y == number;
    return all;
  };
  for (int looks = 0; !__all_sync(0xffffffffu, here()); ++looks) {
    if (looks > run::kPatience) run::give_up();
#pragma unroll
    for (int i = 0; i < kN; ++i)
      if (seen[i].y != number) seen[i] = run::look_at(from + i * kWarp + lane);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kN; ++i) to[i] = __uint_as_float(seen[i].x);
}

// By one warp: a head arrives and is normed and turned as the projections' part asks.
template <int kDim>
static __device__ __noinline__ void take_head(int row, const float* weight, int turns, int layer) {
  constexpr int kEach = kDim / kWarp;
  const Layer& l = LayerPlace(layer).layer();
  const int lane = run::this_lane();
  const unsigned number = number_of(layer);
  float* to = room<SpanRoom>().heads[run::this_warp()];
  const Value* from = values(kAt.in) + row;
  const auto constants = load_constants<kEach>(weight, kDim, l.cos, l.sin, turns, lane);
  float x[kEach];
  await_values<kEach>(from, number, lane, x);
  put_head<kEach>(x, constants, weight != nullptr, kDim, l.head_eps, lane, to);
#pragma unroll 1
  for (int i = lane; i < turns; i += kWarp)
    turn_pair(to, i, turns, i == lane ? constants.cos : l.cos[i],
              i == lane ? constants.sin : l.sin[i]);
  __syncwarp();
}

// The span's query heads; where the span ends with the row, its key and value go to their page.
template <int kDim>
static __device__ __noinline__ void take_heads_of(int unit, int layer) {
  SpanRoom& a = room<SpanRoom>();
  const Layer& l = LayerPlace(layer).layer();
  const SpanPlace at(unit, l);
  const int n = at.group + (at.last() ? 2 : 0), lane = run::this_lane();
#pragma unroll 1
  for (int i = run::this_warp(); i < n; i += kRowWarps) {
    const bool query = i < at.group, key = i == at.group;
    const int row = query ? (at.kv_head * at.group + i) * l.query_stride
                          : (key ? l.keys_at : l.values_at) + at.kv_head * kDim;
    take_head<kDim>(row, query ? l.q_norm : key ? l.k_norm : nullptr, query || key ? l.turns : 0,
                    layer);
    const float* x = a.heads[run::this_warp()];
    if (query) {
#pragma unroll 1
      for (int d = lane; d < kDim; d += kWarp) a.q[i][d] = __float2half_rn(x[d] * l.scale);
      continue;
    }
    const KvHead place = head_places<kDim>(l, at.kv_head);
    const int own = at.tokens.end - 1;
    auto* page = const_cast<std::byte*>(pages_of(unit)[own % at.size / kPageTokens]);
    auto* to =
        reinterpret_cast<__half*>(page + (key ? place.k : place.v)) + own % kPageTokens * kDim;
#pragma unroll 1
    for (int d = lane; d < kDim; d += kWarp) to[d] = page_half(x[d]);
    __syncwarp();
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
  const SpanPlace at(unit, l);
  SpanShared<kMostGroup>& to = room<SpanRoom>().span;
  hide_scores<kRowWarps>(at.group, at.tokens, to);
  PageRows<kDim, true> keys{pages_of(unit), head_places<kDim>(l, at.kv_head).k};
  score_tokens<kDim, kRowWarps, 1>(QueryRows{}, keys, at.group, 0.0f, at.tokens, to);
}
static __device__ __noinline__ void weigh(int unit, int layer) {
  SpanRoom& a = room<SpanRoom>();
  const SpanPlace at(unit, LayerPlace(layer).layer());
  weigh_span<kRowWarps>(
      at.group, 0, at.tokens,
      [&](int head, int i, float x) { (i == 0 ? a.top : a.weight)[head] = x; }, a.span);
}
template <int kDim>
static __device__ __noinline__ void pass_values(int unit, int layer) {
  const Layer& l = LayerPlace(layer).layer();
  const SpanPlace at(unit, l);
  const SpanRoom& a = room<SpanRoom>();
  Record* to = partials(l, at.index(), at.kv_head * at.group, kDim);
  PageRows<kDim, true> rows{pages_of(unit), head_places<kDim>(l, at.kv_head).v};
  sum_values<kDim, kRowWarps, 1>(
      rows, at.group, at.tokens,
      [&](int head, int column, float sum) {
        run::pass_record(to + head * kDim + column, __float_as_uint(sum),
                         __float_as_uint(a.top[head]), __float_as_uint(a.weight[head]),
                         number_of(layer));
      },
      a.span);
}

template <int kDim>
static __device__ __noinline__ void attend(int layer) {
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x);; unit += kBlocks) {
    const Layer& l = LayerPlace(layer).layer();
    const SpanPlace at(unit, l);
    if (!at.here()) break;
    const int i = static_cast<int>(threadIdx.x), page = at.tokens.start / kPageTokens + i;
    if (i < at.size / kPageTokens)
      pages_of(unit)[i] =
          l.pool + l.page_table[min(page, (at.tokens.end - 1) / kPageTokens)] * l.page_stride;
    row_warps_sync();  // the room of the span before has been read, and pages are there
    take_heads_of<kDim>(unit, layer);
    row_warps_sync();
    score<kDim>(unit, layer);
    row_warps_sync();
    weigh(unit, layer);
    row_warps_sync();
    pass_values<kDim>(unit, layer);
  }
}

// A lane's records of several spans, waited for together.
template <int kN>
struct Looks {
  Record seen[kN];
  const Record* from;
  std::int64_t stride;
  int n;
  __device__ __forceinline__ void look(int i) { seen[i] = run::look_at(from + i * stride); }
  __device__ __forceinline__ void await(unsigned number) {
#pragma unroll
    for (int i = 0; i < kN; ++i)
      if (i < n) look(i);
    const auto here = [&] {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kN; ++i) all = all && (i >= n || seen[i].w == number);
      return all;
    };
    for (int looks = 0; !__all_sync(0xffffffffu, here()); ++looks) {
      if (looks > run::kPatience) run::give_up();
#pragma unroll
      for (int i = 0; i < kN; ++i)
        if (i < n && seen[i].w != number) look(i);
    }
    __syncwarp();
  }
};

// Of a group of 32 columns, by four warps: spans first, first + 1, ... to shared memory, and the
// highest top of those that the warp has.
__device__ __forceinline__ float bring_spans(const Record* from, std::int64_t stride, int n,
                                             unsigned number) {
  constexpr int kLooks = 4;
  SumRoom& a = room<SumRoom>();
  const int team = run::this_warp() / kTeamWarps, lane = run::this_lane();
  float top = -INFINITY;
#pragma unroll 1
  for (int i = run::this_warp() % kTeamWarps; i < n; i += kLooks * kTeamWarps) {
    Looks<kLooks> looks{.from = from + i * stride,
                        .stride = kTeamWarps * stride,
                        .n = (n - i + kTeamWarps - 1) / kTeamWarps};
    looks.await(number);
#pragma unroll
    for (int j = 0; j < kLooks; ++j) {
      const int span = i + j * kTeamWarps;
      if (span >= n) break;
      const Record& v = looks.seen[j];
      a.values[team][span][lane] = __uint_as_float(v.x);
      top = fmaxf(top, __uint_as_float(v.y));
      if (lane == 0) a.top[team][span] = __uint_as_float(v.y);
      if (lane == 1) a.weight[team][span] = __uint_as_float(v.z);
    }
  }
  return top;
}
struct SpanSums {
  float weight = 0, value = 0;
};
// Adds those that stand in shared memory.
__device__ __forceinline__ void add_spans(int n, float top, SpanSums& sums) {
  const SumRoom& a = room<SumRoom>();
  const int team = run::this_warp() / kTeamWarps, lane = run::this_lane();
#pragma unroll 1
  for (int first = 0; first < n; first += kWarp) {
    const int some = min(kWarp, n - first);
    const float factor = lane < some ? expf(a.top[team][first + lane] - top) : 0.0f;
#pragma unroll 4
    for (int i = 0; i < some; ++i) {
      const float f = shuffle(factor, i);
      sums.weight = fmaf(a.weight[team][first + i], f, sums.weight);
      sums.value = fmaf(a.values[team][first + i][lane], f, sums.value);
    }
  }
}

// Two groups at a time, first span first, as combine_spans() adds them.
template <int kDim>
static __device__ __noinline__ void combine(int layer) {
  SumRoom& a = room<SumRoom>();
  const Layer& l = LayerPlace(layer).layer();
  constexpr int kGroups = kDim / kWarp;
  const int team = run::this_warp() / kTeamWarps, own = run::this_warp() % kTeamWarps;
  const int spans = spans_of(shared()->sequence.first_position + 1);
  const std::int64_t stride = std::int64_t{l.heads} * kDim;
#pragma unroll 1
  for (int start = static_cast<int>(blockIdx.x); start < l.heads * kGroups;
       start += kTeams * kBlocks) {
    const int group = start + team * kBlocks, head = group / kGroups;
    const int column = group % kGroups * kWarp, lane = run::this_lane();
    const bool has = head < l.heads;
    const Record* from = partials(l, 0, head, kDim) + column + lane;
    float top = -INFINITY, gate[1] = {0};
    if (has && own == kTeamWarps - 1 && l.gated != 0)
      await_values<1>(values(kAt.in) + head * l.query_stride + kDim + column, number_of(layer),
                      lane, gate);
    // More spans than come at once: the tops of the others.
#pragma unroll 1
    for (int i = kSpansAtOnce + own; has && i < spans; i += kTeamWarps) {
      Looks<1> looks{.from = from + i * stride, .stride = stride, .n = 1};
      looks.await(number_of(layer));
      top = fmaxf(top, __uint_as_float(looks.seen[0].y));
    }
    SpanSums sums;
#pragma unroll 1
    for (int first = 0; first < spans; first += kSpansAtOnce) {
      const int n = has ? min(kSpansAtOnce, spans - first) : 0;
      row_warps_sync();  // what was there before has been read
      top = fmaxf(top, bring_spans(from + first * stride, stride, n, number_of(layer)));
      if (first == 0 && lane == 0) a.tops[team][own] = top;
      if (first == 0 && own == kTeamWarps - 1)
        a.gate[team][lane] = l.gated != 0 ? sigmoid(gate[0]) : 1.0f;
      row_warps_sync();
      if (own != 0) continue;
#pragma unroll
      for (int i = 0; i < kTeamWarps; ++i) top = fmaxf(top, a.tops[team][i]);
      add_spans(n, top, sums);
    }
    if (has && own == 0)
      run::pass_group_here(sums.value / sums.weight * a.gate[team][lane], 0.0f, number_of(layer),
                           lane, records(kAt.heads) + group * 4);
  }
  row_warps_sync();  // rows take its place
}

__device__ __forceinline__ void attend_and_combine(int layer) {
  row_warps_sync();  // all have the row: no product reads what was before it
  if (LayerPlace(layer).layer().head_dim == kMostHeadDim) {
    attend<kMostHeadDim>(layer);
    combine<kMostHeadDim>(layer);
  } else {
    attend<kMostHeadDim / 2>(layer);
    combine<kMostHeadDim / 2>(layer);
  }
}

#endif

}  // namespace tessera::gpu::dense_run
