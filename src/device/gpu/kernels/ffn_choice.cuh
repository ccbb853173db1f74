// The choice of experts for all rows in ffn_together.cu's kernel: each block makes it for itself, a
// warp a row, and lists the experts that were chosen, each once.
#pragma once

#include "device/gpu/kernels/ffn_together.cuh"

namespace tessera::gpu::together {

#ifdef TESSERA_GPU_WGMMA

// A row's, by one warp: eight times the greatest logit that is left, of equal ones the lower id; a
// lane has every 32nd. A block does this for all rows, so the code is short: it runs once.
struct Choice {
  float logits[kExperts / kWarp];
  std::uint32_t own = 0;  // in the first lanes, of what was chosen: the logit's order
  std::int32_t id = 0;
};
__device__ __forceinline__ Choice choose_row(const float* logits, int lane) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kEach = kExperts / kWarp;
  Choice c;
  std::uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) c.logits[i] = logits[i * kWarp + lane];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float x = c.logits[i];
    c.logits[i] = usable_logit(x);
    keys[i] = ordered(c.logits[i]);
  }
#pragma unroll 1
  for (int rank = 0; rank < kUsed; ++rank) {
    std::uint32_t top = keys[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) top = max(top, keys[i]);
    top = __reduce_max_sync(kAll, top);
    int id = kExperts;
#pragma unroll
    for (int i = kEach; i-- > 0;) id = keys[i] == top ? i * kWarp + lane : id;
    id = static_cast<int>(__reduce_min_sync(kAll, static_cast<unsigned>(id)));
#pragma unroll
    for (int i = 0; i < kEach; ++i) keys[i] = id == i * kWarp + lane ? 0 : keys[i];
    if (lane == rank) c.own = top, c.id = id;
  }
  return c;
}

// The chosen experts, each once; by the first eight warps.
__device__ __forceinline__ void list_chosen(int warp, int lane) {
  TogetherShared* s = memory();
  const int e = static_cast<int>(threadIdx.x);
  const std::uint32_t who = s->who[e];
  const unsigned taken = __ballot_sync(0xffffffffu, who != 0);
  if (lane == 0) s->counts[warp] = __popc(taken);
  row_warps_sync();
  int before = 0, all = 0;
#pragma unroll
  for (int i = 0; i < kExperts / kWarp; ++i) {
    before += i < warp ? s->counts[i] : 0;
    all += s->counts[i];
  }
  if (who != 0) s->list[before + __popc(taken & ((1u << lane) - 1))] = {e, who};
  if (e == 0) s->n_chosen = all;
  __syncwarp();
  if (lane == 0) arrive(shared_address(&s->chosen));
}

// The weights of what a row chose, as weigh_experts() has them.
__device__ __forceinline__ void weigh(const MoeArgs& moe, const Choice& c, int row, int lane) {
  const auto logit = [](std::uint32_t key) {
    return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
  };
  const float top = logit(shuffle(c.own, 0));
  float all = 0;
#pragma unroll
  for (const float x : c.logits) all += expf(x - top);
  all = top == -INFINITY ? 0.0f : warp_sum(all);
  const bool mine = lane < kUsed;
  float weight = mine && all > 0 ? expf(logit(c.own) - top) / all : 0.0f;
  const float sum = warp_sum(weight);
  weight = scaled_weight(weight, sum, moe.router.weight_scale, moe.router.normalize);
  if (!mine) return;
  memory()->weights[row][lane] = weight;
  if (blockIdx.x == 0) {
    moe.ids[row * kUsed + lane] = c.id;
    moe.weights[row * kUsed + lane] = weight;
  }
}

// By the first eight warps, a row each.
__device__ __forceinline__ void choose(const FfnArgs& ffn, int warp, int lane) {
  const bool mine = warp < ffn.rows;
  Choice c;
  if (mine) {
    c = choose_row(ffn.moe.logits + warp * kExperts, lane);
    if (lane < kUsed)
      atomicOr(&memory()->who[c.id], 1u << warp | static_cast<unsigned>(lane) << (8 + 3 * warp));
  }
  row_warps_sync();
  list_chosen(warp, lane);
  if (mine) weigh(ffn.moe, c, warp, lane);
}

#endif

}  // namespace tessera::gpu::together
