// The warp of ffn_together.cu's kernel that asks for the weights: entry after entry into the ring,
// and behind the FFN into all of its room what the projections of the layer behind need.
#pragma once

#include "device/gpu/kernels/ffn_together.cuh"

namespace tessera::gpu::together {

#ifdef TESSERA_GPU_WGMMA

class Feeder {
 public:
  __device__ Feeder(const TogetherArgs& args, int lane)
      : args_(args), lane_(lane), gate_(plane(args.gate, 0)),
        up_(plane(args.up, args.ffn.moe.shape.up_offset)),
        down_(plane(args.down, args.ffn.moe.shape.down_offset)) {}

  // All entries, up to those of down. The dense branch's unit is asked for ahead of the wait for the
  // kernel before, since no kernel of the step writes its weights. Blocks that have none take the
  // same turn with nothing to copy, so that most of its code is there when the experts are known:
  // fetched only then it would take a microsecond.
  __device__ __forceinline__ void feed() {
    const FfnArgs& ffn = args_.ffn;
    TogetherShared* s = memory();
    const Units units(ffn.rows);
    Plane gate{}, up{};
    const std::byte *gate_data = ffn.dense.gate.data, *up_data = ffn.dense.up.data;
    if (units.has_dense()) gate = plane(args_.dense_gate, 0), up = plane(args_.dense_up, 0);
    int n = 0, pair_of = units.place;
#pragma unroll 1
    for (int unit = -1;;) {
      pair(gate, gate_data, pair_of);
      pair(up, up_data, pair_of);
      if (unit < 0) {
        await_choice();
        n = s->n_chosen * kPairs, unit = units.first;
        gate = gate_, up = up_;
      } else {
        unit = units.next(unit);
      }
      if (unit >= n) break;
      gate_data = up_data = s->table[s->list[unit / kPairs].id];
      pair_of = unit % kPairs;
    }
    if (has_tile()) feed_down();
  }
  // All of the ring's room, when nobody reads there any more.
  __device__ __forceinline__ void feed_next() {
    TogetherShared* s = memory();
    const NextUnits units(args_.next);
#pragma unroll 1
    for (int i = 0; i < args_.job.slots; ++i) {
      await_barrier(shared_address(&s->empty[turn_.slot]), turn_.phase ^ 1);
      turn_.next(args_.job.slots);
    }
#pragma unroll 1
    for (int i = 0; i < units.n; ++i) {
      const NextUnit unit = units.of(i);
      const Source& of = unit.output.source;
      const std::uint32_t here = shared_address(&s->next_here[i]);
      if (lane_ < 4)
        copy(plane(of, 0), unit.output.data, unit.pair * kPairSupers, kPairSupers,
             address_of(i * kNextPairBytes), here);
      if (lane_ == 0) barrier_expect(here, kPairSupers * super_bytes(of.type));
    }
  }

 private:
  // Of a super-block of a matrix: the lane's plane, the planes before it, all.
  struct Plane {
    std::int64_t offset;
    std::int32_t bytes, before, all;
  };
  __device__ __forceinline__ Plane plane(const Source& of, std::int64_t offset) const {
    const int i = lane_ % 4;
    return {of.offset[i] + offset, of.bytes[i], of.before[i], super_bytes(of.type)};
  }

  // Asks for the rows, then waits for the choice.
  __device__ __forceinline__ void await_choice() {
    TogetherShared* s = memory();
    chain_wait();
    if (lane_ == 0) {
      const int bytes = args_.ffn.rows * static_cast<int>(rounded_row_bytes(kCols));
      barrier_expect(shared_address(&s->rows_here), bytes);
      bulk_copy(shared_address(s->x), args_.x, bytes, shared_address(&s->rows_here));
    }
    __syncwarp();
    await_barrier(shared_address(&s->chosen), 0);
  }
  __device__ __forceinline__ void feed_down() {
    const FfnArgs& ffn = args_.ffn;
    TogetherShared* s = memory();
    const int first = cluster() * kDownSupers, k = lane_ / 4;
    if (has_dense_down()) {
      const std::uint32_t to = reserve();
      const Plane dense = plane(args_.dense_down, 0);
      if (k == 0) copy(dense, ffn.dense.down.data, first, kDownSupers, to, full());
      expect(kDownSupers * dense.all);
    }
    const int expert_bytes = kDownSupers * down_.all;
    const DownShare share(s->n_chosen);
#pragma unroll 1
    for (int u = share.first; u < share.end; u += args_.job.down_together) {
      const int count = min(args_.job.down_together, share.end - u);
      const std::byte* data = nullptr;
      if (k < count) data = s->table[s->list[u + k].id];
      const std::uint32_t to = reserve();
      if (k < count)
        copy(down_, data, first, kDownSupers, to + static_cast<std::uint32_t>(k * expert_bytes),
             full());
      expect(count * expert_bytes);
    }
  }

  // Of no matrix, as one of the first two: no entry.
  __device__ __forceinline__ void pair(const Plane& of, const std::byte* data, int index) {
    const std::uint32_t to = reserve();
    if (of.all == 0) return;
    if (lane_ < 4) copy(of, data, index * kPairSupers, kPairSupers, to, full());
    expect(kPairSupers * of.all);
  }
  // Of n super-blocks from number `first` on, a plane a lane.
  __device__ __forceinline__ void copy(const Plane& of, const std::byte* data, int first, int n,
                                       std::uint32_t to, std::uint32_t here) {
    if (of.bytes == 0) return;
    copy_once(to + static_cast<std::uint32_t>(n * of.before),
              data + of.offset + std::int64_t{first} * of.bytes, n * of.bytes, here);
  }
  __device__ __forceinline__ std::uint32_t full() const {
    return shared_address(&memory()->full[turn_.slot]);
  }
  // The next entry's place, when nobody reads there any more, and not too many are on their way.
  __device__ __forceinline__ std::uint32_t reserve() {
    TogetherShared* s = memory();
    if (asked_ >= kEntriesUnderWay) {
      await_barrier(shared_address(&s->full[come_.slot]), come_.phase);
      come_.next(args_.job.slots);
    }
    await_barrier(shared_address(&s->empty[turn_.slot]), turn_.phase ^ 1);
    return address_of(turn_.slot * args_.job.slot_bytes);
  }
  // Bytes may come ahead of what is expected: the arrival is what the barrier waits for.
  __device__ __forceinline__ void expect(int bytes) {
    if (lane_ == 0) barrier_expect(full(), bytes);
    ++asked_;
    turn_.next(args_.job.slots);
    __syncwarp();  // a lane that waits for a round must not be two rounds late
  }

  const TogetherArgs& args_;
  int lane_, asked_ = 0;
  Plane gate_, up_, down_;
  Turn turn_, come_;  // to ask for, awaited
};

#endif

}  // namespace tessera::gpu::together
