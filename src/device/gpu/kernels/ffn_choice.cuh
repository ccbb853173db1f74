// The choice of experts for all rows in ffn_together.cu's kernel: each block makes it for itself, a
// warp a row, and lists the experts that were chosen, each once.
#pragma once

#include "device/gpu/kernels/ffn_together.cuh"

namespace tessera::gpu::together {

#ifdef TESSERA_GPU_WGMMA

// A row's, by one warp: eight times the greatest logit that is left, of equal ones the lower id; a
// lane has every 32nd.
inline constexpr int kEach = kExperts / kWarp;
struct Choice {
  float logits[kEach];
  std::uint32_t own = 0;  // in the first lanes, of what was chosen: the logit's order
  std::int32_t id;
};
__device__ __forceinline__ void load_logits(const float* from, int lane, float (&to)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[i] = usable_logit(from[i * kWarp + lane]);
}
__device__ __forceinline__ std::uint32_t greatest(const std::uint32_t (&keys)[kEach]) {
  static_assert(kEach == 8);
  return max(max(max(keys[0], keys[1]), max(keys[2], keys[3])),
             max(max(keys[4], keys[5]), max(keys[6], keys[7])));
}
// The lane's lowest place of a key that it has.
__device__ __forceinline__ int place_of(const std::uint32_t (&keys)[kEach], std::uint32_t key) {
  int place = 0;
#pragma unroll
  for (int i = kEach; i-- > 0;) place = keys[i] == key ? i : place;
  return place;
}
__device__ __forceinline__ void order(const float (&logits)[kEach],
                                      std::uint32_t (&keys)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = ordered(logits[i]);
}
// Where several lanes have the greatest: seldom, and right for all.
static __device__ __noinline__ int choose_equal(const float* from, int lane) {
  float logits[kEach];
  load_logits(from, lane, logits);
  std::uint32_t keys[kEach];
  order(logits, keys);
  int chosen = 0;
#pragma unroll 1
  for (int rank = 0; rank < kUsed; ++rank) {
    const std::uint32_t own = greatest(keys), top = __reduce_max_sync(0xffffffffu, own);
    const int mine = own == top ? place_of(keys, top) * kWarp + lane : kExperts;
    const int id = static_cast<int>(__reduce_min_sync(0xffffffffu, static_cast<unsigned>(mine)));
#pragma unroll
    for (int i = 0; i < kEach; ++i) keys[i] = id == i * kWarp + lane ? 0 : keys[i];
    if (lane == rank) chosen = id;
  }
  return chosen;
}
// All blocks wait for it. A lane drops its greatest where that is the warp's, as if no other had
// the same, and who had it is looked up behind: one reduction a round.
__device__ __forceinline__ Choice choose_row(const float* logits, int lane) {
  constexpr unsigned kAll = 0xffffffffu;
  Choice c;
  load_logits(logits, lane, c.logits);
  std::uint32_t keys[kEach];
  order(c.logits, keys);
  unsigned holders = 0;  // in lane `rank`
  int places = 0;        // of the lane's own, three bits a rank
#pragma unroll
  for (int rank = 0; rank < kUsed; ++rank) {
    const std::uint32_t own = greatest(keys);
    const int place = place_of(keys, own);
    const std::uint32_t top = __reduce_max_sync(kAll, own);
    const int taken = own == top ? place : kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i) keys[i] = i == taken ? 0 : keys[i];
    places |= place << (3 * rank);
    const unsigned who = __ballot_sync(kAll, own == top);
    if (lane == rank) c.own = top, holders = who;
  }
  const int holder = max(__ffs(static_cast<int>(holders)) - 1, 0);
  const int at = shuffle(places, holder) >> 3 * (lane % kUsed) & 7;
  c.id = at * kWarp + holder;
  if (__any_sync(kAll, (holders & (holders - 1)) != 0)) {
    c.id = choose_equal(logits, lane);
    c.own = ordered(usable_logit(logits[c.id]));
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
