// Attention of one layer in run.h's kernel: spans (sizes.h) by blocks (attention_span.cuh),
// whose partial results the workers add up, 32 columns of a head each.
#pragma once

#include "device/gpu/kernels/attention_head.cuh"
#include "device/gpu/kernels/run_mixer.cuh"

namespace tessera::gpu::run {

#ifdef TESSERA_GPU_WGMMA

// By one warp: a head arrives, is normed and turned where it has a norm, and left in its place.
static __device__ __noinline__ void take_head(const Value* from, const float* weight) {
  constexpr int kEach = kHeadDim / kWarp;
  Shared* s = shared();
  const Layer& l = this_layer();
  const unsigned number = progress().number;
  const int lane = this_lane();
  const int turns = weight != nullptr ? l.turns : 0;
  const int angles = s->row_number * l.turns;
  const auto constants =
      load_constants<kEach>(weight, kHeadDim, l.cos + angles, l.sin + angles, turns, lane);
  float* to = s->attention.heads[threadIdx.x / kWarp];
  float x[kEach];
  Value seen[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) seen[i] = look_at(from + i * kWarp + lane);
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = await_value(seen[i], from + i * kWarp + lane, number);
  __syncwarp();
  put_head<kEach>(x, constants, weight != nullptr, kHeadDim, l.eps, lane, to);
  if (lane < turns) turn_pair(to, lane, turns, constants.cos, constants.sin);
  __syncwarp();
}

// The row's queries of the span's heads; where the span ends with the row, its key and value go to
// their page too.
__device__ __forceinline__ void take_heads(const Passed& passed, const Span& span, int warp,
                                           int lane) {
  Shared* s = shared();
  const Layer& l = this_layer();
  const int which = warp - kGroupHeads;  // 0: the key, 1: the value
  if (which > 1 || (which >= 0 && !span.last())) return;
  const int from = which < 0 ? (span.kv_head * kGroupHeads + warp) * 2 * kHeadDim
                             : (which == 0 ? kKeysAt : kValuesAt) + span.kv_head * kHeadDim;
  take_head(passed.in() + from, which < 0 ? l.q_norm : which == 0 ? l.k_norm : nullptr);
  const float* x = s->attention.heads[warp];
  if (which < 0) {
#pragma unroll 1
    for (int i = lane; i < kHeadDim; i += kWarp)
      s->attention.q[warp][i] = __float2half_rn(x[i] * l.scale);
    return;
  }
  const int position = s->sequence.first_position;
  const KvHead place = page_places(span.kv_head);
  const int id = l.page_table[s->row_number * l.table_stride + position / kPageTokens];
  auto* to = reinterpret_cast<__half*>(l.pool + id * l.page_stride +
                                       (which == 0 ? place.k : place.v)) +
             position % kPageTokens * kHeadDim;
#pragma unroll 1
  for (int i = lane; i < kHeadDim; i += kWarp)
    to[i] = s->attention.own[which][i] = page_half(x[i]);
}

// Of eight heads, from shared memory.
struct QueryRows {
  int lane;
  __device__ __forceinline__ void load(int i, QueryWords& to) const {
    const uint4 v =
        *reinterpret_cast<const uint4*>(&shared()->attention.q[lane / 4][lane % 4 * 8 + 32 * i]);
    to[0][0] = v.x, to[0][2] = v.y, to[1][0] = v.z, to[1][2] = v.w;
    to[0][1] = to[0][3] = to[1][1] = to[1][3] = 0;
  }
};

// A span's keys or values as they stand in the ring, a page an entry. A warp gives a page's room
// back when it asks for a later one.
class RingRows {
 public:
  static constexpr int kSixteen = kSixteenBytes / 2;
  // `own_page`: that of the row itself, whose key or value has not come with it.
  __device__ __forceinline__ RingRows(Reader& reader, int own_page, const __half* own)
      : reader_(reader), begin_(reader.taken()), own_page_(own_page), own_(own) {}

  __device__ __forceinline__ const __half* page(int page) {
    leave(page);
    char* to = shared_bytes() + reader_.entry(0);
    if (page == own_page_) {
      const int lane = this_lane();
      const int token = shared()->sequence.first_position % kPageTokens;
      // By each warp that reads the page, for itself: all write the same.
      reinterpret_cast<uint4*>(to + token / 16 * kSixteenBytes + token % 16 * kTokenBytes)[lane] =
          reinterpret_cast<const uint4*>(own_)[lane];
      async_fence();  // bulk copies will take its place
      __syncwarp();
    }
    return reinterpret_cast<const __half*>(to);
  }
  template <typename T>
  __device__ __forceinline__ static T read(const T* from) {
    return *from;
  }
  // The first `pages` have been read, or are left to others.
  __device__ __forceinline__ void leave(int pages) {
    const unsigned n = begin_ + static_cast<unsigned>(pages) - reader_.taken();
    if (n > 0) reader_.release(n, this_lane());
  }

 private:
  Reader& reader_;
  unsigned begin_;
  int own_page_;
  const __half* own_;
};

static __device__ __noinline__ void attend(Passed passed) {
  AttentionShared& a = shared()->attention;
  SpanShared<kGroupHeads>& s = a.span;
  Reader reader(progress().taken);
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x);; unit += kBlocks) {
    const int position = shared()->sequence.first_position;
    const Span span = span_of(unit, position);
    if (span.index >= span.spans) break;
    const int pages = span.pages(position), own_page = span.last() ? pages - 1 : -1;
    const SpanTokens tokens{span.index * span.size, span.size, 0, position + 1};
    readers_sync();  // the span before has been read
    take_heads(passed, span, this_warp(), this_lane());
    readers_sync();
    hide_scores<kReaders>(kGroupHeads, tokens, s);
    RingRows keys(reader, own_page, a.own[0]);
    score_tokens<kHeadDim, kReaders, 1>(QueryRows{this_lane()}, keys, kGroupHeads, 0.0f, tokens, s);
    keys.leave(pages);
    readers_sync();
    weigh_span<kReaders>(
        kGroupHeads, 0, tokens, [&](int head, int i, float x) { a.of_span[i][head] = x; }, s);
    readers_sync();
    Record* to = passed.partials() +
                 (span.index * kQueryHeads + span.kv_head * kGroupHeads) * std::int64_t{kHeadDim};
    RingRows values(reader, own_page, a.own[1]);
    sum_values<kHeadDim, kReaders, 2>(
        values, kGroupHeads, tokens,
        [&](int head, int column, float sum) {
          pass_record(to + head * kHeadDim + column, __float_as_uint(sum),
                      __float_as_uint(a.of_span[0][head]), __float_as_uint(a.of_span[1][head]),
                      progress().number);
        },
        s);
    values.leave(pages);
  }
  progress().taken = reader.taken();
}

// Workers: the spans' sums, first span first, as combine_spans() adds them.
static __device__ __noinline__ void combine(Passed passed) {
  AttentionShared& a = shared()->attention;
  const unsigned number = progress().number;
  const int warp = this_warp();
  const int lane = this_lane();
  constexpr int kEach = kHeadDim / kGroup;
  const int block = static_cast<int>(blockIdx.x), head = block / kEach;
  const int first = block % kEach * kGroup;
  const int spans = spans_of(shared()->sequence.first_position + 1);
  constexpr std::int64_t kStride = std::int64_t{kQueryHeads} * kHeadDim;  // of spans
  const Record* partials = passed.partials() + head * kHeadDim + first + lane;
  float top = -INFINITY, sum = 0, value = 0;
  readers_sync();  // the block's own spans have been read
  if (warp == kReaders - 1) {
    const Value* gates = passed.in() + (head * 2 + 1) * kHeadDim + first;
    shared()->z[lane] = sigmoid(await_value(gates + lane, number));
  }
  // More spans than come at once: the tops of the others.
#pragma unroll 1
  for (int i = kSpansAtOnce + warp; i < spans; i += kReaders)
    top = fmaxf(top, __uint_as_float(await_record(partials + i * kStride, number).y));
#pragma unroll 1
  for (int start = 0; start < spans; start += kSpansAtOnce) {
    const int n = min(kSpansAtOnce, spans - start);
    if (start > 0) readers_sync();
    const Record* from = partials + (start + warp) * kStride;
    Record next{};
    if (warp < n) next = look_at(from);
#pragma unroll 1
    for (int i = warp; i < n; i += kReaders, from += kReaders * kStride) {
      const Record seen = next;
      if (i + kReaders < n) next = look_at(from + kReaders * kStride);
      const Record r = await_record(seen, from, number);
      a.partials.values[i][lane] = __uint_as_float(r.x);
      top = fmaxf(top, __uint_as_float(r.y));
      if (lane == 0) a.partials.top[i] = __uint_as_float(r.y);
      if (lane == 1) a.partials.weight[i] = __uint_as_float(r.z);
    }
    if (start == 0 && lane == 0) a.tops[warp] = top;
    readers_sync();
    if (warp != 0) continue;
#pragma unroll
    for (int i = 0; i < kReaders; ++i) top = fmaxf(top, a.tops[i]);
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      factor[i] = i * kWarp + lane < n ? expf(a.partials.top[i * kWarp + lane] - top) : 0.0f;
#pragma unroll 4
    for (int i = 0; i < n; ++i) {
      const float f = shuffle(i < kWarp ? factor[0] : factor[1], i % kWarp);
      sum = fmaf(a.partials.weight[i], f, sum);
      value = fmaf(a.partials.values[i][lane], f, value);
    }
  }
  if (warp != 0) return;
  pass_group(value / sum * shared()->z[lane], 0.0f, number, lane, passed.heads() + block * 4);
}

#endif

}  // namespace tessera::gpu::run
