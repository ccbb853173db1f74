// Attention of a layer in dense_run.h's kernel, by the eight warps that bring rows: spans (sizes.h)
// by blocks (dense_run_span.cuh), whose partial results blocks add up, 32 columns of a head each,
// where there are several. Results have the bits of attention().
#pragma once

#include "device/gpu/kernels/dense_run_span.cuh"

namespace tessera::gpu::dense_run {

// In SpanRoom's place, when all warps have read that.
inline constexpr int kSpansAtOnce = 64, kTeams = 2, kTeamWarps = kRowWarps / kTeams;
struct SumRoom {
  float values[kTeams][kSpansAtOnce][kWarp];
  float top[kTeams][kSpansAtOnce], weight[kTeams][kSpansAtOnce];
  float tops[kTeams][kTeamWarps], gate[kTeams][kWarp];
};

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ int units_of(const Layer& l) {
  return attends_whole(l) ? l.heads : l.key_heads * spans_of(context_here());
}
template <int kDim>
static __device__ __noinline__ void attend(int layer) {
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x); unit < units_of(LayerPlace(layer).layer());
       unit += kBlocks) {
    if (const int i = static_cast<int>(threadIdx.x); i < kSpanPages)
      describe_span(unit, LayerPlace(layer).layer(), i);
    row_warps_sync();  // the room of the span before has been read, and pages are there
    if (span_of(unit).tokens.size > kPageTokens) {
      attend_pages<kDim>(unit, layer);
    } else {
      take_page<kDim>(unit, layer);
      attend_page<kDim>(unit, layer);
    }
  }
}

// A lane's records of n spans, one at least and kN at most.
template <int kN>
struct SpansSeen {
  Record v[kN] = {};  // zeros, or the compiler keeps more registers than there are
  const Record* from;
  std::int64_t stride;
  int n;
  __device__ __forceinline__ SpansSeen(const Record* at, std::int64_t step, int spans)
      : from(at), stride(step), n(spans) {
    again();
  }
  __device__ __forceinline__ bool here(unsigned number) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kN; ++i) all = all && (i >= n || v[i].w == number);
    return all;
  }
  __device__ __forceinline__ bool any(unsigned number) const { return v[0].w == number; }
  __device__ __forceinline__ void look(unsigned number) {
#pragma unroll
    for (int i = 0; i < kN; ++i)
      if (i < n && v[i].w != number) v[i] = run::look_at(from + i * stride);
  }
  __device__ __forceinline__ void again() {
#pragma unroll
    for (int i = 0; i < kN; ++i)
      if (i < n) v[i] = run::look_at(from + i * stride);
  }
  __device__ __forceinline__ const unsigned* sign() const { return &from->w; }
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
    SpansSeen<kLooks> seen(from + i * stride, kTeamWarps * stride,
                           (n - i + kTeamWarps - 1) / kTeamWarps);
    await_all(seen, number);
#pragma unroll
    for (int j = 0; j < kLooks; ++j) {
      const int span = i + j * kTeamWarps;
      if (span >= n) break;
      const Record& v = seen.v[j];
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
  const int spans = spans_of(context_here());
  const std::int64_t stride = std::int64_t{l.heads} * kDim;
#pragma unroll 1
  for (int start = static_cast<int>(blockIdx.x); start < l.heads * kGroups;
       start += kTeams * kBlocks) {
    const int group = start + team * kBlocks, head = group / kGroups;
    const int column = group % kGroups * kWarp, lane = run::this_lane();
    const bool has = head < l.heads;
    const Record* from = partials(l, 0, head, kDim) + column + lane;
    float top = -INFINITY, gate = 0.0f;
    if (has && own == kTeamWarps - 1 && l.gated != 0) {
      ValuesSeen<1> seen(values(kAt.in) + head * l.query_stride + kDim + column + lane);
      await_all(seen, number_of(layer));
      gate = __uint_as_float(seen.v[0].x);
    }
    // More spans than come at once: the tops of the others.
#pragma unroll 1
    for (int i = kSpansAtOnce + own; has && i < spans; i += kTeamWarps) {
      RecordSeen seen(from + i * stride);
      await_all(seen, number_of(layer));
      top = fmaxf(top, __uint_as_float(seen.v.y));
    }
    SpanSums sums;
#pragma unroll 1
    for (int first = 0; first < spans; first += kSpansAtOnce) {
      const int n = has ? min(kSpansAtOnce, spans - first) : 0;
      row_warps_sync();  // what was there before has been read
      top = fmaxf(top, bring_spans(from + first * stride, stride, n, number_of(layer)));
      if (first == 0 && lane == 0) a.tops[team][own] = top;
      if (first == 0 && own == kTeamWarps - 1)
        a.gate[team][lane] = l.gated != 0 ? sigmoid(gate) : 1.0f;
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
}

template <int kDim>
__device__ __forceinline__ void attend_row(int layer) {
  attend<kDim>(layer);
  if (!attends_whole(LayerPlace(layer).layer())) combine<kDim>(layer);
}
__device__ __forceinline__ void attend_and_combine(int layer) {
  row_warps_sync();  // all have the row: no product reads what was before it
  if (LayerPlace(layer).layer().head_dim == kMostHeadDim)
    attend_row<kMostHeadDim>(layer);
  else
    attend_row<kMostHeadDim / 2>(layer);
  row_warps_sync();  // rows take its place
}

#endif

}  // namespace tessera::gpu::dense_run
