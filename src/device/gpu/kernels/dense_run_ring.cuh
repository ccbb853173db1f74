// Shared memory of a block of dense_run.h's kernel, and how weights come to it: one warp asks for
// what the schedule says, entry after entry, into a ring, and whoever multiplies with an entry
// gives its room back.
#pragma once

#include <bit>

#include "device/gpu/kernels/attention_span.cuh"
#include "device/gpu/kernels/dense_run.h"
#include "device/gpu/kernels/dense_run_await.cuh"
#include "device/gpu/kernels/dense_run_plan.h"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/run_supers.cuh"

namespace tessera::gpu::dense_run {

struct Args {
  DenseRunArgs run;
  const std::byte* schedules;
};

inline constexpr int kThreads = (1 + kRowWarps + kProductWarps) * kWarp;
inline constexpr unsigned kSlots = 32;  // entries in the ring at most
// Entries on their way at most: what one multiprocessor fetches ahead stands in front of what
// another one waits for.
inline constexpr unsigned kUnderWay = 3;
inline constexpr int kLayersAhead = 2;  // descriptions in shared memory
// Entries of a layer behind which the next one's description is asked for: by then, the ring holds
// none of the layer before.
inline constexpr int kDescribeAt = 24;
inline constexpr int kShares = 16;  // of the columns of plain rows (plain_share_of())

// Of a delta net's half head.
struct Mixer {
  alignas(16) float q[kDim], k[kDim], v[kHalf], mixed[kHalf];
  float gates[2][kShares];  // alpha's and beta's sums
  // Of shares that one warp begins and another one ends, with 20 super-blocks every fourth: the
  // lanes' sums, and that they are there.
  float lanes[kShares / 4][2][kWarp];
  std::uint64_t begun[kShares / 4];
  unsigned steps;  // of delta nets before: the phase of `begun`
  float decay, beta;
};

// A span of the context and the query heads that a block attends with, all that share a KV head or,
// where the context is one span and heads are no more than blocks, one of them.
struct Span {
  bool whole;  // one head, which nobody else adds to
  bool last;   // it ends with the row ...
  bool puts;   // ... whose key and value this block brings to their page
  int heads, first_head, kv_head, index;  // the span's number in the context
  SpanTokens tokens;
};

struct Shared {
  // Of the ring: bytes have come, room is free; where an entry is, and the bytes it keeps from
  // others.
  alignas(16) std::uint64_t full[kSlots];
  std::uint64_t empty[kSlots];
  int offset[kSlots], kept[kSlots];
  std::uint64_t parts[kPartsOfRows];                          // of rows are there
  std::uint64_t described[kLayersAhead], left[kLayersAhead];  // a layer is, by all warps
  alignas(16) Layer layers[kLayersAhead];
  alignas(16) Schedule schedules[kLayersAhead];
  Shape shape;
  Sequence sequence;
  Span spans[2];                          // of the block in turns, ...
  const std::byte* pages[2][kSpanPages];  // ... and their pages
  unsigned number;                        // of the first layer, for run_values.cuh
  std::byte* passed;
  float* hidden;
  Log* log;
  // Rounded: the mixer's columns or the FFN's, before which attention is there, then the residual.
  alignas(16) char rows[kMostHidden + kMostEmbd][kSuperBytes];
  alignas(16) float squares[kMostEmbd];  // of the residual
  float sums[kOutSums + kUpSums][kTileRows];
  std::uint64_t tiles[kCounters];   // all sums of a tile, or of a group, are there
  unsigned rounds[kCounters];       // how often they were
  float mine[kMostOut][kTileRows];  // of the residual
  Mixer mixer;
  Log logged;                 // the layer's ...
  std::uint64_t logged_here;  // ... is there
  unsigned logs;              // so many were asked for
};
static_assert(kMostMixed <= kMostHidden);

inline constexpr int kRingBytes = (227 * 1024 - static_cast<int>(sizeof(Shared))) / 128 * 128;
inline constexpr int kSharedBytes = kRingBytes + static_cast<int>(sizeof(Shared));
// An empty ring has room for any entry, wherever it begins.
static_assert(kRingBytes >= 2 * kMostFour * run::super_bytes(BlockType::Q4_K) &&
              kRingBytes >= 2 * kMostSix * run::super_bytes(BlockType::Q6_K));

#ifdef TESSERA_GPU_WGMMA

using run::address_of, run::await_barrier, run::copy_once, run::offset_of, run::Record, run::Value;

__device__ __forceinline__ Shared* shared() {
  return reinterpret_cast<Shared*>(run::shared_bytes() + kRingBytes);
}
// What attention has in the place of the mixer's columns: whoever knows that the row in is there
// knows that no product reads what was before it.
template <typename T>
__device__ __forceinline__ T& room() {
  static_assert(sizeof(T) <= std::size_t{kMostHidden} * kSuperBytes);
  return *reinterpret_cast<T*>(shared()->rows);
}
__device__ __forceinline__ std::uint32_t row_address(int index) {
  return shared_address(shared()->rows) + static_cast<std::uint32_t>(index * kSuperBytes);
}
// Found again where they are needed: what is live across a call is what it has to save.
__device__ __forceinline__ Value* values(std::int64_t at) {
  return reinterpret_cast<Value*>(shared()->passed + at);
}
__device__ __forceinline__ Record* records(std::int64_t at) {
  return reinterpret_cast<Record*>(shared()->passed + at);
}
__device__ __forceinline__ unsigned number_of(int layer) {
  return shared()->number + static_cast<unsigned>(layer);
}
inline constexpr PassedLayout kAt = passed_layout();

// Where layer i of the run is described.
struct LayerPlace {
  int at;
  __device__ __forceinline__ explicit LayerPlace(int i) : at(i % kLayersAhead) {}
  __device__ __forceinline__ const Layer& layer() const { return shared()->layers[at]; }
  __device__ __forceinline__ const Schedule& schedule() const { return shared()->schedules[at]; }
};
__device__ __forceinline__ void await_description(int i) {
  await_barrier(shared_address(&shared()->described[i % kLayersAhead]), (i / kLayersAhead) & 1);
}
__device__ __forceinline__ void row_warps_sync() {
  static_assert(kRowWarps * kWarp == 256);
  asm volatile("bar.sync 1, 256;" ::: "memory");
}
// Into L2, a line a thread.
inline constexpr int kLine = 128;
__device__ __forceinline__ void prefetch_lines(const void* at, int bytes, int thread) {
  if (thread * kLine < bytes) prefetch_line(static_cast<const char*>(at) + thread * kLine);
}
__device__ __forceinline__ void arrive(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
// The calling warp needs layer i no more.
__device__ __forceinline__ void leave_layer(int i, int lane) {
  __syncwarp();
  if (lane == 0) run::arrive(shared_address(&shared()->left[i % kLayersAhead]));
}

// One lane of the warp, which the compiler knows to be one: a copy's addresses have to be the
// warp's, and of several lanes it would take one after the other.
__device__ __forceinline__ bool elected() {
  unsigned one;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(one));
  return one != 0;
}

class Feeder {
 public:
  __device__ Feeder(const Args& args, int lane) : args_(args), lane_(lane) {}

  // Asks for the description of layer i.
  __device__ __forceinline__ void describe(int i) {
    Shared* s = shared();
    const int at = i % kLayersAhead;
    if (i >= kLayersAhead) {
      after_others();
      await_barrier(shared_address(&s->left[at]), (i / kLayersAhead + 1) & 1);
    }
    if (lane_ != 0) return;
    const auto* layer =
        reinterpret_cast<const Layer*>(args_.run.plans + layers_at()) + args_.run.first + i;
    const int number = i > 0 ? s->layers[(i - 1) % kLayersAhead].next_schedule : layer->schedule;
    const auto* schedule =
        reinterpret_cast<const Schedule*>(args_.schedules) + number * kBlocks + blockIdx.x;
    const std::uint32_t barrier = shared_address(&s->described[at]);
    barrier_expect(barrier, static_cast<int>(sizeof(Layer) + sizeof(Schedule)));
    copy_once(shared_address(&s->layers[at]), layer, sizeof(Layer), barrier);
    copy_once(shared_address(&s->schedules[at]), schedule, sizeof(Schedule), barrier);
  }

  __device__ __forceinline__ void feed(int i) {
    const LayerPlace place(i);
    const int last = place.schedule().n - 1, described = min(kDescribeAt, last);
    Entry next(place, 0);
#pragma unroll 1
    for (int at = 0; at <= last; ++at) {
      const Entry now = next;
      next = Entry(place, min(at + 1, last));  // its reads end while this one waits
      feed(now);
      if (at == described && i + 1 < args_.run.n_layers) describe(i + 1);
    }
  }

 private:
  // An entry, and where its matrix's planes lie.
  struct Entry {
    Feed of;
    ulonglong2 low, high;
    __device__ __forceinline__ Entry(const LayerPlace& place, int index)
        : of(std::bit_cast<Feed>(
              run::load_shared<uint4>(shared_address(place.schedule().feed + index)))) {
      const std::uint32_t planes = shared_address(place.layer().planes[of.matrix]);
      low = run::load_shared<ulonglong2>(planes), high = run::load_shared<ulonglong2>(planes + 16);
    }
    __device__ __forceinline__ int bytes() const { return static_cast<int>(of.bytes); }
  };

  // Few instructions: they are what an entry takes, and stages begin with small ones.
  __device__ __forceinline__ void feed(const Entry& e) {
    Shared* s = shared();
    const unsigned before = issued_ - kUnderWay, slot = issued_ % kSlots;
    const std::uint32_t under_way = shared_address(&s->full[before % kSlots]);
    // For the first entries there is none, and the round before a barrier's first one has ended.
    const bool here = run::barrier_passed(under_way, (before / kSlots) & 1);
    // Room in one piece: what is left at the ring's end stays empty.
    int need = e.bytes(), start = head_;
    if (start + e.bytes() > kRingBytes) need += kRingBytes - start, start = 0;
    while (used_ + need > kRingBytes || issued_ - freed_ >= kSlots) free_one();
    used_ += need, head_ = start + e.bytes();
    s->offset[slot] = start, s->kept[slot] = need;
    if (!here) run::await_barrier_long(under_way, (before / kSlots) & 1);
    const std::uint32_t full = shared_address(&s->full[slot]), to = address_of(start);
    if (elected()) {
      barrier_expect(full, e.bytes());
      if (e.of.six != 0)
        copy_six(e, to, full);
      else
        copy_four(e, to, full);
    }
    ++issued_;
  }
  template <unsigned kEach, unsigned kBefore>
  static __device__ __forceinline__ void copy_plane(const Entry& e, unsigned long long plane,
                                                    std::uint32_t to, std::uint32_t full) {
    copy_once(to + e.of.supers * kBefore,
              reinterpret_cast<const std::byte*>(plane + std::uint64_t{e.of.at} * kEach),
              static_cast<int>(e.of.supers * kEach), full);
  }
  static __device__ __forceinline__ void copy_four(const Entry& e, std::uint32_t to,
                                                   std::uint32_t full) {
    copy_plane<2048, 0>(e, e.low.x, to, full);
    copy_plane<192, 2048>(e, e.low.y, to, full);
    copy_plane<64, 2240>(e, e.high.x, to, full);
  }
  static __device__ __forceinline__ void copy_six(const Entry& e, std::uint32_t to,
                                                  std::uint32_t full) {
    copy_plane<2048, 0>(e, e.low.x, to, full);
    copy_plane<1024, 2048>(e, e.low.y, to, full);
    copy_plane<256, 3072>(e, e.high.x, to, full);
    copy_plane<32, 3328>(e, e.high.y, to, full);
  }

  // The oldest entry's room, when all have read it.
  __device__ __forceinline__ void free_one() {
    Shared* s = shared();
    const unsigned slot = freed_ % kSlots;
    const int kept = s->kept[slot];
    const std::uint32_t empty = shared_address(&s->empty[slot]);
    if (const unsigned phase = (freed_ / kSlots) & 1; !run::barrier_passed(empty, phase)) {
      after_others();
      run::await_barrier_long(empty, phase);
    }
    used_ -= kept;
    ++freed_;
  }
  // What waits for readers must not lose patience while they wait for the kernels before this one.
  __device__ __forceinline__ void after_others() {
    if (others_done_) return;
    chain_wait();
    others_done_ = true;
  }

  const Args& args_;
  const int lane_;
  bool others_done_ = false;
  int head_ = 0, used_ = 0;
  unsigned issued_ = 0, freed_ = 0;
};

__device__ __forceinline__ void feed_all(const Args& args, int lane) {
  Feeder feeder(args, lane);
  feeder.describe(0);
#pragma unroll 1
  for (int i = 0; i < args.run.n_layers; ++i) {
    await_description(i);
    __syncwarp();
    feeder.feed(i);
    leave_layer(i, lane);
  }
}

#endif

}  // namespace tessera::gpu::dense_run
