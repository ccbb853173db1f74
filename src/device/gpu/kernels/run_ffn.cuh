// The FFN of one layer in run.h's kernel, as a block's 16 reading warps see it: the router's
// logits, the choice, which every worker makes for itself, gate and up of one expert's pair of
// tiles, and down of a tile of the residual. The dense branch goes beside the choice: a tile of its
// activations in some workers, its part of down in all.
#pragma once

#include "device/gpu/kernels/run_mixer.cuh"

namespace tessera::gpu::run {

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ void route(Warp& w, const Layer& l) {
  const int block = static_cast<int>(blockIdx.x);
  const int entry = w.reader.entry(0);
  if (w.warp < kSupers)
    take_row(w.passed.middle(), entry, block < kWorkers ? 2 : 1, w.passed.logits() + block * 2, 1,
             l.eps, w.number);
  w.reader.release(1, w.lane);
}

// The first eight warps; as select.cuh, a thread an expert, then four a candidate.
__device__ __forceinline__ void choose_experts(Warp& w) {
  Shared* s = shared();
  const int e = static_cast<int>(threadIdx.x);
  const float logit = await_value(w.passed.logits() + e, w.number);
  __syncwarp();
  const float x = usable_logit(logit);
  s->logits[e] = x;
  const std::uint32_t key = ordered(x);
  s->keys[e] = key;
  __syncwarp();
  const int place = rank_of(s->keys + w.warp * kWarp, 0, kWarp, w.lane, key);
  if (place < kUsed) {
    s->best[w.warp * kUsed + place] = key;
    s->best_ids[w.warp * kUsed + place] = e;
  }
  row_warps_sync();
  constexpr int kShare = kExperts / kWarp * kUsed / 4;
  const int i = e / 4, begin = e % 4 * kShare;
  int rank = rank_of(s->best, begin, begin + kShare, i, s->best[i]);
  rank += shuffle_xor(rank, 1);
  rank += shuffle_xor(rank, 2);
  if (rank < kUsed && e % 4 == 0) s->selection.ids[rank] = s->best_ids[i];
  __syncwarp();
  if (w.lane == 0) arrive(shared_address(&s->chosen));
}

// One warp.
__device__ __forceinline__ void weigh_chosen(Warp& w, const Layer& l) {
  Shared* s = shared();
  const bool mine = w.lane < kUsed;
  float top = -INFINITY, all = 0;
#pragma unroll 1
  for (int e = w.lane; e < kExperts; e += kWarp) top = fmaxf(top, s->logits[e]);
  top = warp_max(top);
#pragma unroll 1
  for (int e = w.lane; e < kExperts; e += kWarp) all += expf(s->logits[e] - top);
  all = warp_sum(all);
  float weight = mine && all > 0 ? expf(s->logits[s->selection.ids[w.lane]] - top) / all : 0.0f;
  const float sum = warp_sum(weight);
  weight = scaled_weight(weight, sum, l.weight_scale, l.normalize != 0);
  if (mine) s->selection.weights[w.lane] = weight;
  if (blockIdx.x == 0 && mine) {
    const int at = s->row_number * kUsed + w.lane;
    l.ids[at] = s->selection.ids[w.lane];
    l.weights[at] = weight;
  }
}

// A group of 32 hidden activations of an expert, from two tiles of gate and two of up. The row
// stands rounded since route().
__device__ __forceinline__ void hidden_group(Warp& w, const Layer& l) {
  Shares* shares = shared()->shares + 1;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const float sum = super_sum(i == 0 ? l.gate : l.up, w.half_entry(), 8, w.warp % 8,
                                row_address(w.warp % 8), threadIdx.x);
    put_sum(sum, w.lane, shares[i][w.warp]);
    w.reader.release(2, w.lane);
  }
  const float factor = w.warp == 0 ? row_factor(1, l.eps) : 0.0f;
  readers_sync();
  if (w.warp != 0) return;
  const float gate = w.pair_total(shares[0]) * factor, up = w.pair_total(shares[1]) * factor;
  pass_group(silu_called(gate) * up, 0.0f, w.number, w.lane,
             w.passed.h() + static_cast<int>(blockIdx.x) * 4);
}

// A tile of the dense branch's hidden activations, by the warps that choose no experts.
__device__ __forceinline__ void dense_tile(Warp& w, const Layer& l, int tile) {
  if (w.warp < kSupers) {
    row_is_there();
  } else {
    const int index = w.warp - kSupers;
    Shares& shares = shared()->shares[0];
    const float2 sums = two_sums(l.dense_gate, address_of(w.reader.entry(0)), l.dense_up,
                                 address_of(w.reader.entry(1)), index, threadIdx.x);
    put_sum(sums.x, w.lane, shares[index]);
    put_sum(sums.y, w.lane, shares[kSupers + index]);
    const float factor = index == 0 ? row_factor(1, l.eps) : 0.0f;
    other_warps_sync();
    if (index == 0) {
      const float total = w.pair_total(shares) * factor;  // gate's, then up's
      const float up = shuffle(total, w.lane % kTileRows + kTileRows);
      if (w.lane < kTileRows)
        pass_value(w.passed.dense() + row_place(static_cast<unsigned>(tile * kTileRows + w.lane)),
                   silu_called(total) * up, w.number);
    }
  }
  w.reader.release(2, w.lane);
}

// Super-block `half` of the dense branch's activations, which are there long before the experts'.
__device__ __forceinline__ void dense_down(Warp& w, const Layer& l, int half) {
  const int item = kUsed * 2 + half;
  round_here(await_eight(w.passed.dense(), half, w.lane, w.number), w.lane, item);
  const float weight = sigmoid(await_value(w.passed.logits() + kExperts, w.number));
  __syncwarp();
  const float sum = super_sum(l.dense_down, address_of(w.reader.entry(0)), 2, half,
                              row_address(item), threadIdx.x);
  put_sum(sum * weight, w.lane, shared()->branch_shares[item]);
}

// Workers. What waits for nothing but the dense branch is done while the experts' bytes come.
__device__ __forceinline__ void gate_and_up(Warp& w, const Layer& l) {
  const int block = static_cast<int>(blockIdx.x), half = w.warp - (kReaders - 2);
  if (block < kDenseTiles) dense_tile(w, l, block);
  if (w.warp < kExperts / kWarp) choose_experts(w);
  if (half >= 0) dense_down(w, l, half);
  w.reader.release(1, w.lane);
  await_barrier(shared_address(&shared()->chosen), w.number & 1);
  if (w.warp == kSupers - 1) weigh_chosen(w, l);
  hidden_group(w, l);
}

// Workers: a super-block of an expert's activations a warp; entries of four experts each.
__device__ __forceinline__ void down(Warp& w, const Layer& l) {
  Shared* s = shared();
  const int item = w.warp, expert = item / 2;
  const std::uint32_t tile = address_of(w.reader.entry(static_cast<unsigned>(expert / 4)) +
                                        expert % 4 * 2 * super_bytes(l.down));
  const float sum = records_sum(l.down, tile, 2, item % 2, w.passed.h() + item * kWarp + w.lane,
                                false, 0.0f, item, w.number);
  put_sum(sum * s->selection.weights[expert], w.lane, s->branch_shares[item]);
  w.reader.release(2, w.lane);
  readers_sync();
  if (threadIdx.x >= kTileRows) return;
  float total = 0;
#pragma unroll 6
  for (const auto& share : s->branch_shares) total += share[threadIdx.x];
  float& mine = s->mine[threadIdx.x];
  mine += total;
  pass_value(w.passed.hidden() + own_place(), mine, w.number + 1);
}

#endif

}  // namespace tessera::gpu::run
