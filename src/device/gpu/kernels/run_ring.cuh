// How the bytes of a run come to a block: one warp asks for what the plans say, entry after entry,
// into a ring in shared memory, and 16 others read them and give the room back.
//
//   Feeder feeder(args, lane);  feeder.describe(plans, i);  feeder.feed(i);       // one warp
//   const int at = reader.entry(0);  ...  reader.release(1, lane);           // the others
#pragma once

#include "device/gpu/kernels/attention_span.cuh"
#include "device/gpu/kernels/handover.cuh"
#include "device/gpu/kernels/run.h"
#include "device/gpu/kernels/run_plan.h"
#include "device/gpu/kernels/run_supers.cuh"
#include "device/gpu/kernels/select.cuh"

namespace tessera::gpu::run {

inline constexpr int kReaders = 16;  // warps
inline constexpr int kThreads = (kReaders + 1) * kWarp;
// Entries in the ring at most: some 12, and what lanes of the feeder are apart, which read `kept`
// each for itself.
inline constexpr unsigned kSlots = 32;
static_assert(kMostTogether <= kWarp, "a piece a lane");
// What has to be there at once, with what is lost at the ring's end.
static_assert((kGateRows + kRowsTogether) * kCols * 4 <= kRingBytes &&
              5 * kSupers * super_bytes(BlockType::Q4_K) <= kRingBytes);
// Entries on their way at most. More, and what one multiprocessor fetches ahead stands in front of
// what another one waits for: 25 us a layer with 3, 28 without a limit.
inline constexpr unsigned kUnderWay = 3;
// Descriptions in shared memory.
inline constexpr int kLayersAhead = 4;

// Attention: one after the other in the same place, heads as they arrive, a span, and partial
// results of spans.
inline constexpr int kSpansAtOnce = 64;
struct AttentionShared {
  union {
    float heads[kGroupHeads + 2][kHeadDim];  // a warp each
    SpanShared<kGroupHeads> span;
    struct {
      float values[kSpansAtOnce][kGroup], top[kSpansAtOnce], weight[kSpansAtOnce];
    } partials;
  };
  alignas(16) __half q[kGroupHeads][kHeadDim + 32];  // for the products, in rows of other banks
  alignas(16) __half own[2][kHeadDim];  // the row's key and value, where the span ends with it
  float of_span[2][kGroupHeads];  // tops, weights
  float tops[kReaders];
};

// How far a reading warp is. In registers it would be what every part of a layer has to save.
struct Progress {
  int layer;        // of the run
  unsigned number;  // of the layer, for run_values.cuh; odd in odd layers
  unsigned taken;   // entries of the ring
};

// The warps' sums of 16 rows.
using Shares = float[kReaders][kTileRows];

// Shared memory behind the ring.
struct Shared {
  // Of the ring: bytes have come, room is free; where an entry is, and the bytes it keeps from
  // others.
  alignas(16) std::uint64_t full[kSlots];
  std::uint64_t empty[kSlots];
  int offset[kSlots], kept[kSlots];
  std::uint64_t chosen;  // the layer's experts are
  // Of the run: a layer's description has come, all warps have left it.
  std::uint64_t described[kLayersAhead], left[kLayersAhead];
  alignas(16) Layer layers[kLayersAhead];
  alignas(16) Plan plans[kLayersAhead];
  alignas(16) const std::byte* tables[kLayersAhead][kExperts];
  const std::byte* base[kBases];
  Sequence sequence;
  int row_number;  // in the step
  Progress progress[kReaders];

  alignas(16) Shares shares[3];
  float branch_shares[(kUsed + 1) * 2][kTileRows];  // of nine branches, two super-blocks each
  float plain_shares[2][kSupers];
  alignas(16) char row[(kUsed + 1) * 2 * kSuperBytes];  // rounded: the row, heads, or branches
  float squares[2][kSupers];                            // of the layer's input, behind its mixer
  Selection selection;
  float logits[kExperts];
  // The order of every expert's logit; the best of each 32 experts, and who they are.
  alignas(16) std::uint32_t keys[kExperts];
  alignas(16) std::uint32_t best[kExperts / kWarp * kUsed];
  std::int32_t best_ids[kExperts / kWarp * kUsed];
  alignas(16) float q[kDim], k[kDim], v[kGroup], z[kGroup], mixed[kGroup];
  float decay, beta;
  union {
    AttentionShared attention;
    alignas(16) float normed[kCols];  // helpers: the row, for alpha and beta
  };
  float mine[kTileRows];  // the residual of the block's tile
};

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ Shared* shared() {
  return reinterpret_cast<Shared*>(shared_bytes() + kRingBytes);
}
// Of a rounded super-block.
__device__ __forceinline__ std::uint32_t row_address(int index) {
  return shared_address(shared()->row) + static_cast<std::uint32_t>(index * kSuperBytes);
}
// The calling warp's.
__device__ __forceinline__ Progress& progress() {
  return shared()->progress[this_warp()];
}
__device__ __forceinline__ const Layer& this_layer() {
  return shared()->layers[progress().layer % kLayersAhead];
}

// Of a step's row: unit u is KV head u % 2 and span u / 2 (sizes.h). `index` at `spans` or above:
// there is none.
struct Span {
  int kv_head, index, spans, size;
  __device__ __forceinline__ int first_page() const { return index * (size / kPageTokens); }
  // That the row at `position` sees; the span's last one may be the row's own.
  __device__ __forceinline__ int pages(int position) const {
    return min(size / kPageTokens, position / kPageTokens + 1 - first_page());
  }
  __device__ __forceinline__ bool last() const { return index + 1 == spans; }
};
__device__ __forceinline__ Span span_of(int unit, int position) {
  return {unit % kKvHeads, unit / kKvHeads, spans_of(position + 1), span_tokens(position + 1)};
}
__device__ __forceinline__ KvHead page_places(int kv_head) {
  return kv_head_at({kKvHeads, kHeadDim, kHeadDim, KvFormat::f16}, kv_head);
}

class Feeder {
 public:
  __device__ Feeder(const RunArgs& args, int lane) : args_(args), lane_(lane) {}

  // Asks for the description of layer i of the run.
  __device__ __forceinline__ void describe(const LayerPlans* plans, int i) {
    Shared* s = shared();
    const int at = i % kLayersAhead;
    if (i >= kLayersAhead) {
      after_others();
      await_barrier(shared_address(&s->left[at]), (i / kLayersAhead + 1) & 1);
    }
    const std::uint32_t barrier = shared_address(&s->described[at]);
    if (lane_ != 0) return;
    constexpr int kTable = kExperts * static_cast<int>(sizeof(void*));
    barrier_expect(barrier, static_cast<int>(sizeof(Layer) + sizeof(Plan)) + kTable);
    copy_once(shared_address(&s->layers[at]), &plans[i].layer, sizeof(Layer), barrier);
    copy_once(shared_address(&s->plans[at]), &plans[i].plans[blockIdx.x], sizeof(Plan), barrier);
    copy_once(shared_address(&s->tables[at]), plans[i].layer.table, kTable, barrier);
  }

  __device__ __forceinline__ void feed(int i) {
    Shared* s = shared();
    const Plan& plan = s->plans[i % kLayersAhead];
    bool chosen = false;
#pragma unroll 1
    for (const Entry* at = plan.entries;; ++at) {
      // What each lane copies is found out ahead of the waits: an entry should be asked for as
      // soon as they end.
      const Entry entry = *at;
      if (entry.bytes == 0) return;
      if (entry.when == kSpans) {
        feed_spans(s->layers[i % kLayersAhead]);
        continue;
      }
      const bool copies = lane_ < entry.n;
      const Piece piece = plan.pieces[entry.first + (copies ? lane_ : 0)];
      if (entry.when == kChosen && !chosen) {
        after_others();
        await_barrier(shared_address(&s->chosen), i & 1);
        if (lane_ < kUsed)
          s->base[kChosenExpert + lane_] = s->tables[i % kLayersAhead][s->selection.ids[lane_]];
        chosen = true;
        __syncwarp();
      }
      const std::byte* from = s->base[piece.size >> 24] + piece.from;
      const int start = reserve(entry.bytes);
      const std::uint32_t barrier = shared_address(&s->full[issued_ % kSlots]);
      // Bytes may come ahead of what is expected: the arrival is what the barrier waits for.
      if (copies)
        copy_once(address_of(start + piece.to), from, static_cast<int>(piece.size & 0xffffffu),
                  barrier);
      if (lane_ == 0) barrier_expect(barrier, entry.bytes);
      ++issued_;
    }
  }

 private:
  // Of each span the keys, then the values, a page an entry: what earlier steps have left of them.
  __device__ __forceinline__ void feed_spans(const Layer& l) {
    Shared* s = shared();
    const int position = s->sequence.first_position;
#pragma unroll 1
    for (int unit = static_cast<int>(blockIdx.x);; unit += kBlocks) {
      const Span span = span_of(unit, position);
      if (span.index >= span.spans) return;
      const int pages = span.pages(position), first = span.first_page();
      const std::int32_t* table = l.page_table + s->row_number * l.table_stride + first;
      const int id = lane_ < pages ? table[lane_] : 0;
      const KvHead place = page_places(span.kv_head);
#pragma unroll 1
      for (int i = 0; i < 2 * pages; ++i) {
        const int page = i < pages ? i : i - pages;
        const std::byte* from =
            l.pool + shuffle(id, page) * l.page_stride + (i < pages ? place.k : place.v);
        // The row's own place stays empty.
        const int before = position - (first + page) * kPageTokens;
        const int bytes = min(16, before - 16 * lane_) * kTokenBytes;  // a lane each sixteen
        const int start = reserve(page_bytes(min(before + 1, kPageTokens)));
        const std::uint32_t barrier = shared_address(&s->full[issued_ % kSlots]);
        if (lane_ < kPageTokens / 16 && bytes > 0)
          copy_once(address_of(start + lane_ * kSixteenBytes), from + lane_ * 16 * kTokenBytes,
                    bytes, barrier);
        if (lane_ == 0) barrier_expect(barrier, min(before, kPageTokens) * kTokenBytes);
        ++issued_;
      }
    }
  }

  // Room for the next entry, in one piece: what is left at the ring's end stays empty.
  __device__ __forceinline__ int reserve(int bytes) {
    Shared* s = shared();
    int need = bytes, start = head_;
    if (start + bytes > kRingBytes) need += kRingBytes - start, start = 0;
    while (used_ + need > kRingBytes || issued_ - freed_ >= kSlots) {
      after_others();
      const unsigned slot = freed_ % kSlots;
      await_barrier(shared_address(&s->empty[slot]), (freed_ / kSlots) & 1);
      used_ -= s->kept[slot];
      ++freed_;
    }
    if (issued_ >= kUnderWay) {
      const unsigned before = issued_ - kUnderWay;
      await_barrier(shared_address(&s->full[before % kSlots]), (before / kSlots) & 1);
    }
    // Of one lane, which alone tells readers that the entry is there.
    if (lane_ == 0) s->offset[issued_ % kSlots] = start, s->kept[issued_ % kSlots] = need;
    used_ += need;
    head_ = start + bytes;
    return start;
  }

  // What waits for readers must not lose patience while they wait for the kernels before this one,
  // which may wait for the host, or for a row of another GPU.
  __device__ __forceinline__ void after_others() {
    if (others_done_) return;
    chain_wait();
    if (args_.taken != nullptr)
      take_value(reinterpret_cast<const Handed*>(args_.taken), args_.number, args_.most_ns);
    others_done_ = true;
  }

  const RunArgs& args_;
  int lane_;
  bool others_done_ = false;
  int head_ = 0, used_ = 0;
  unsigned issued_ = 0, freed_ = 0;
};

// One of the 16 warps' places in the ring: all go through the same entries.
class Reader {
 public:
  __device__ explicit Reader(unsigned taken) : taken_(taken) {}

  // The entry `ahead` of the next one, when it is there: where it lies.
  __device__ __forceinline__ int entry(unsigned ahead) const {
    Shared* s = shared();
    const unsigned at = taken_ + ahead, slot = at % kSlots;
    await_barrier(shared_address(&s->full[slot]), (at / kSlots) & 1);
    return s->offset[slot];
  }
  // This warp has read the next n entries, or leaves them to others.
  __device__ __forceinline__ void release(unsigned n, int lane) {
    __syncwarp();
    const auto i = static_cast<unsigned>(lane);
    if (i < n) arrive(shared_address(&shared()->empty[(taken_ + i) % kSlots]));
    taken_ += n;
  }
  // Entries so far.
  __device__ __forceinline__ unsigned taken() const { return taken_; }

 private:
  unsigned taken_;
};

#endif

}  // namespace tessera::gpu::run
