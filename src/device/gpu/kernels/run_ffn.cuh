// The FFN of one layer in run.h's kernel, as a block's 16 reading warps see it: the router's
// logits, the choice, which every worker makes for itself, gate and up of one expert's pair of
// tiles, and down of a tile of the residual.
#pragma once

#include "device/gpu/kernels/run_mixer.cuh"

namespace tessera::gpu::run {

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ void route(Warp& w, const Layer& l) {
  const int block = static_cast<int>(blockIdx.x);
  const int entry = w.reader.entry(0);
  const int n = block < kWorkers ? 2 : block == kScalarGateBlock ? 1 : 0;
  if (w.warp < kSupers)
    take_row(w.passed.middle(), entry, n, w.passed.logits() + block * 2, 1, l.eps, w.number);
  w.reader.release(1, w.lane);
}

// The first eight warps; as select.cuh, a thread an expert, then four a candidate.
__device__ __forceinline__ void choose_experts(Warp& w) {
  Shared* s = shared();
  const int e = static_cast<int>(threadIdx.x);
  const float logit = await_value(w.passed.logits() + e, w.number);
  __syncwarp();
  const float x = isnan(logit) ? -INFINITY : fminf(logit, 3.402823466e38f);
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
  weight *= l.weight_scale / (l.normalize ? fmaxf(sum, 6.103515625e-5f) : 1.0f);
  if (mine) s->selection.weights[w.lane] = weight;
  __syncwarp();
  if (w.lane == 0) arrive(shared_address(&s->weighed));
  if (blockIdx.x == 0 && mine) {
    l.ids[w.lane] = s->selection.ids[w.lane];
    l.weights[w.lane] = weight;
  }
}

// A group of 32 hidden activations of one branch, from two tiles of gate and two of up.
__device__ __forceinline__ void hidden_group(Warp& w, BlockType gate_type, BlockType up_type,
                                             int unit, float factor, Record* to) {
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const float sum = super_sum(i == 0 ? gate_type : up_type, w.half_entry(), 8, w.warp % 8,
                                row_address(w.warp % 8), threadIdx.x);
    put_sum(sum, w.lane, shared()->shares[unit + i][w.warp]);
    w.reader.release(2, w.lane);
  }
  readers_sync();
  if (w.warp != 0) return;
  const float gate = w.pair_total(unit) * factor, up = w.pair_total(unit + 1) * factor;
  pass_group(group_of_lanes(silu_called(gate) * up, w.lane), 0.0f, w.number, w.lane, to);
}

// The row stands rounded since route().
__device__ __forceinline__ void gate_and_up(Warp& w, const Layer& l) {
  const int block = static_cast<int>(blockIdx.x), dense = block - kFirstGateBlock;
  const bool worker = block < kWorkers;
  if (worker) {
    if (w.warp < kExperts / kWarp) choose_experts(w);
    await_barrier(shared_address(&shared()->chosen), w.number & 1);
    if (w.warp == kReaders - 1) weigh_chosen(w, l);
  } else {
    readers_sync();
  }
  const float factor = row_factor(1, l.eps);
  // The dense branch's pair first, where the block has one: so its weights come.
#pragma unroll 1
  for (int i = dense >= 0 ? 0 : 1; i < (worker ? 2 : 1); ++i)
    hidden_group(w, i == 0 ? l.dense_gate : l.gate, i == 0 ? l.dense_up : l.up, i * 4, factor,
                 w.passed.h() + (i == 0 ? kUsed * kPairs + dense : block) * 4);
}

// Workers: a super-block of one branch a warp, two branches where it has two; the dense branch's
// are there first. Three entries: its tile, then those of four experts each.
__device__ __forceinline__ void down(Warp& w, const Layer& l) {
  Shared* s = shared();
  await_barrier(shared_address(&s->weighed), w.number & 1);
  constexpr int kItems = (kUsed + 1) * 2;
  const bool both = w.warp < kItems - kReaders;
#pragma unroll 1
  for (int item = both ? w.warp + kReaders : w.warp; item >= 0; item -= kReaders) {
    const int branch = item / 2;
    const bool dense = branch == kUsed;
    const Record v = await_record(w.passed.h() + item * kWarp + w.lane, w.number);
    const float weight = dense ? sigmoid(await_value(w.passed.logits() + kExperts, w.number))
                               : s->selection.weights[branch];
    __syncwarp();
    put_records(v, w.lane, false, 0.0f, offset_of(s->row) + item * kSuperBytes);
    const BlockType type = dense ? l.dense_down : l.down;
    const int tile = w.reader.entry(dense ? 0 : 1 + branch / 4) +
                     (dense ? 0 : branch % 4 * 2 * super_bytes(type));
    const float sum =
        super_sum(type, address_of(tile), 2, item % 2, row_address(item), threadIdx.x);
    put_sum(sum * weight, w.lane, s->branch_shares + item * kTileRows);
  }
  w.reader.release(3, w.lane);
  readers_sync();
  if (threadIdx.x >= kTileRows) return;
  float total = 0;
#pragma unroll 6
  for (int item = 0; item < kItems; ++item)
    total += s->branch_shares[item * kTileRows + static_cast<int>(threadIdx.x)];
  float& mine = s->mine[threadIdx.x];
  mine += total;
  pass_value(w.passed.hidden() + blockIdx.x * kTileRows + threadIdx.x, mine, w.number + 1);
}

#endif

}  // namespace tessera::gpu::run
