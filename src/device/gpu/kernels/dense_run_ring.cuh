// Shared memory of a block of dense_run.h's kernel, and how weights come to it: one warp asks for
// what the schedule says, entry after entry, into a ring, and whoever multiplies with an entry
// gives its room back.
#pragma once

#include "device/gpu/kernels/attention_span.cuh"
#include "device/gpu/kernels/dense_run.h"
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
inline constexpr int kShares = 16;  // of the columns of plain rows (share_of())

// Of a delta net's half head.
struct Mixer {
  alignas(16) float q[kDim], k[kDim], v[kHalf], z[kHalf], mixed[kHalf];
  float gates[2][kShares];  // alpha's and beta's sums
  float decay, beta;
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
  const std::byte* pages[2][kSpanPages];  // of the block's spans in turns
  unsigned number;                        // of the first layer, for run_values.cuh
  std::byte* passed;
  float* hidden;
  Log* log;
  // Rounded: the mixer's columns or the FFN's, before which attention is there, then the residual.
  alignas(16) char rows[kMostHidden + kMostEmbd][kSuperBytes];
  float squares[kMostEmbd];  // of the residual
  float sums[kOutSums + kUpSums][kTileRows];
  unsigned counters[kCounters];
  float mine[kMostOut][kTileRows];  // of the residual
  Mixer mixer;
};
static_assert(kMostMixed <= kMostHidden && kMostIn <= kMostUp);

inline constexpr int kRingBytes = (227 * 1024 - static_cast<int>(sizeof(Shared))) / 128 * 128;
inline constexpr int kSharedBytes = kRingBytes + static_cast<int>(sizeof(Shared));

#ifdef TESSERA_GPU_WGMMA

using run::address_of, run::await_barrier, run::copy_once, run::offset_of, run::Record, run::Value;

__device__ __forceinline__ Shared* shared() {
  return reinterpret_cast<Shared*>(run::shared_bytes() + kRingBytes);
}
// What mixers have in the place of their columns: whoever knows that the row in is there knows that
// no product reads what was before it.
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
// The calling warp needs layer i no more.
__device__ __forceinline__ void leave_layer(int i, int lane) {
  __syncwarp();
  if (lane == 0) run::arrive(shared_address(&shared()->left[i % kLayersAhead]));
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
    const int end = place.schedule().n, described = min(kDescribeAt, end - 1);
    // What each lane copies is found out ahead of the waits: an entry should be asked for as soon
    // as they end.
    Copy next = copy_of(place, 0);
#pragma unroll 1
    for (int at = 0; at < end; ++at) {
      const Copy now = next;
      if (at + 1 < end) next = copy_of(place, at + 1);
      const int start = reserve(now.all);
      const std::uint32_t barrier = shared_address(&shared()->full[issued_ % kSlots]);
      // Bytes may come ahead of what is expected: the arrival is what the barrier waits for.
      if (now.bytes > 0) copy_once(address_of(start + now.to), now.from, now.bytes, barrier);
      if (lane_ == 0) barrier_expect(barrier, now.all);
      ++issued_;
      __syncwarp();  // lanes read what others have noted of entries: none is to be far ahead
      if (at == described && i + 1 < args_.run.n_layers) describe(i + 1);
    }
  }

 private:
  // A lane's plane of an entry.
  struct Copy {
    const std::byte* from;
    int bytes, to, all;
  };
  __device__ __forceinline__ Copy copy_of(const LayerPlace& place, int index) const {
    const Feed f = place.schedule().feed[index];
    const bool six = f.six != 0;
    const int plane = lane_ < (six ? 4 : 3) ? lane_ : 0;
    // A super-block's bytes, and those of the planes before.
    const int of_six = plane == 0 ? 2048 : plane == 1 ? 1024 : plane == 2 ? 256 : 32;
    const int before_six = plane == 0 ? 0 : plane == 1 ? 2048 : plane == 2 ? 3072 : 3328;
    const int of_four = plane == 0 ? 2048 : plane == 1 ? 256 : 64;
    const int before_four = plane == 0 ? 0 : plane == 1 ? 2048 : 2304;
    const int each = six ? of_six : of_four;
    const auto data = place.layer().planes[f.matrix][plane];
    return {reinterpret_cast<const std::byte*>(data + std::uint64_t{f.at} *
                                                          static_cast<unsigned>(each)),
            plane == lane_ ? each * f.supers : 0, f.supers * (six ? before_six : before_four),
            static_cast<int>(f.bytes)};
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
