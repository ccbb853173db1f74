// The warp of ffn_together.cu's kernel that asks for the weights: entry after entry into the ring,
// and behind the FFN into all of its room what the projections of the layer behind need.
#pragma once

#include "device/gpu/kernels/ffn_together.cuh"

namespace tessera::gpu::together {

#ifdef TESSERA_GPU_WGMMA

class Feeder {
 public:
  __device__ Feeder(const TogetherArgs& args, int lane) : args_(args), lane_(lane) {}

  __device__ __forceinline__ void feed() {
    const FfnArgs& ffn = args_.ffn;
    TogetherShared* s = memory();
    const Units units(ffn.rows);
    // What no kernel of the step writes, ahead of the wait for the one before.
    if (units.has_dense()) {
      pair(args_.dense_gate, ffn.dense.gate.data, units.place);
      pair(args_.dense_up, ffn.dense.up.data, units.place);
    }
    chain_wait();
    if (lane_ == 0) {
      const int bytes = ffn.rows * static_cast<int>(rounded_row_bytes(kCols));
      barrier_expect(shared_address(&s->rows_here), bytes);
      bulk_copy(shared_address(s->x), args_.x, bytes, shared_address(&s->rows_here));
    }
    __syncwarp();
    await_barrier(shared_address(&s->chosen), 0);
    const int n = s->n_chosen * kPairs;
    for (int unit = units.first; unit < n; unit = units.next(unit)) {
      const std::byte* expert = s->table[s->list[unit / kPairs].id];
      pair(args_.gate, expert, unit % kPairs);
      pair(args_.up, expert + ffn.moe.shape.up_offset, unit % kPairs);
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
        copy(of, unit.output.data, unit.pair * kPairSupers, kPairSupers,
             address_of(i * kNextPairBytes), here);
      if (lane_ == 0) barrier_expect(here, kPairSupers * super_bytes(of.type));
    }
  }

 private:
  __device__ __forceinline__ void feed_down() {
    const FfnArgs& ffn = args_.ffn;
    TogetherShared* s = memory();
    const int first = cluster() * kDownSupers, k = lane_ / 4;
    if (has_dense_down()) {
      const std::uint32_t to = reserve();
      if (k == 0) copy(args_.dense_down, ffn.dense.down.data, first, kDownSupers, to, full());
      expect(kDownSupers * super_bytes(args_.dense_down.type));
    }
    const int expert_bytes = kDownSupers * super_bytes(args_.down.type), n = s->n_chosen;
    for (int u = first_of_down(); u < n; u += kRanks * args_.job.down_together) {
      const int count = min(args_.job.down_together, (n - u + kRanks - 1) / kRanks);
      const std::byte* data = nullptr;
      if (k < count)
        data = s->table[s->list[u + k * kRanks].id] + ffn.moe.shape.down_offset;
      const std::uint32_t to = reserve();
      if (k < count)
        copy(args_.down, data, first, kDownSupers,
             to + static_cast<std::uint32_t>(k * expert_bytes), full());
      expect(count * expert_bytes);
    }
  }

  __device__ __forceinline__ void pair(const Source& of, const std::byte* data, int index) {
    const std::uint32_t to = reserve();
    if (lane_ < 4) copy(of, data, index * kPairSupers, kPairSupers, to, full());
    expect(kPairSupers * super_bytes(of.type));
  }
  // Of n super-blocks from number `first` on, a plane a lane.
  __device__ __forceinline__ void copy(const Source& of, const std::byte* data, int first, int n,
                                       std::uint32_t to, std::uint32_t here) {
    const int plane = lane_ % 4, bytes = of.bytes[plane];
    if (bytes == 0) return;
    copy_once(to + static_cast<std::uint32_t>(n * of.before[plane]),
              data + of.offset[plane] + std::int64_t{first} * bytes, n * bytes, here);
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
    ++asked_;
    await_barrier(shared_address(&s->empty[turn_.slot]), turn_.phase ^ 1);
    return address_of(turn_.slot * args_.job.slot_bytes);
  }
  // Bytes may come ahead of what is expected: the arrival is what the barrier waits for.
  __device__ __forceinline__ void expect(int bytes) {
    if (lane_ == 0) barrier_expect(full(), bytes);
    turn_.next(args_.job.slots);
    __syncwarp();  // a lane that waits for a round must not be two rounds late
  }

  const TogetherArgs& args_;
  int lane_, asked_ = 0;
  Turn turn_, come_;  // to ask for, awaited
};

#endif

}  // namespace tessera::gpu::together
