// The pairs of a routed layer in expert order, rows rising within one, and the tiles that cover
// them. One block an expert counts and lists its own: no atomics, so the order is always the same.
// Floor: a launch each; 32,768 ids are 128 KB, read by every block from L2.
#include "device/gpu/kernels/ffn_tiles.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 1024;  // short runs: most of the time is the latency of reads

// Exclusive sum of `value` over the block's threads in order; *total gets the whole.
__device__ int block_prefix(int value, int* warp_sums, int* total) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  int sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = shuffle(sum, max(lane - step, 0));
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    if (w < warp) before += warp_sums[w];
    all += warp_sums[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - value;
}

// Four ids of the list from `at` on; -1 past the end.
__device__ __forceinline__ int4 four_ids(const std::int32_t* ids, int at, int pairs) {
  if (at + 3 < pairs) return *reinterpret_cast<const int4*>(ids + at);
  const auto one = [&](int i) { return i < pairs ? ids[i] : -1; };
  return {one(at), one(at + 1), one(at + 2), one(at + 3)};
}

// A warp goes through a run of the list, 128 ids at a time: once to count, once to list.
__global__ void __launch_bounds__(kThreads)
    sort_kernel(const std::int32_t* ids, int pairs, std::int32_t* list, std::int32_t* first) {
  __shared__ int sums[kThreads / kWarp];
  constexpr int kStep = 4 * kWarp;
  chain_wait();
  chain_trigger();
  const int expert = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int each = (pairs + kThreads / kWarp * kStep - 1) / (kThreads / kWarp * kStep) * kStep;
  const int begin = warp * each, end = min(pairs, begin + each);
  int less = 0, equal = 0;
#pragma unroll 8
  for (int i = begin + 4 * lane; i < end; i += kStep) {
    const int4 id = four_ids(ids, i, pairs);
    const auto count = [&](int value) {
      less += value >= 0 && value < expert ? 1 : 0;
      equal += value == expert ? 1 : 0;
    };
    count(id.x), count(id.y), count(id.z), count(id.w);
  }
  int all_less = 0, all_equal = 0;
  block_prefix(less, sums, &all_less);
  const int before = block_prefix(equal, sums, &all_equal);
  int at = all_less + shuffle(before, 0);  // of the warp's first
#pragma unroll 4
  for (int i = begin; i < end; i += kStep) {
    const int4 id = four_ids(ids, i + 4 * lane, pairs);
    const bool own[4] = {id.x == expert, id.y == expert, id.z == expert, id.w == expert};
    const int count = own[0] + own[1] + own[2] + own[3];
    int sum = count;  // of this lane and those before it
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = shuffle(sum, max(lane - step, 0));
      if (lane >= step) sum += other;
    }
    int to = at + sum - count;
    for (int j = 0; j < 4; ++j)
      if (own[j]) list[to++] = i + 4 * lane + j;
    at += shuffle(sum, kWarp - 1);
  }
  if (threadIdx.x == 0) {
    first[expert] = all_less;
    if (expert == static_cast<int>(gridDim.x) - 1) first[expert + 1] = pairs;
  }
}

__global__ void __launch_bounds__(kMaxExperts)
    tile_table_kernel(const std::int32_t* first, int n_expert, const std::byte* const* table,
                      int most, ExpertTile* tiles, std::int32_t* n_tiles) {
  __shared__ int sums[kMaxExperts / kWarp];
  chain_wait();
  chain_trigger();
  const int expert = static_cast<int>(threadIdx.x);
  int begin = 0, count = 0;
  if (expert < n_expert && table[expert] != nullptr) {
    begin = first[expert];
    count = first[expert + 1] - begin;
  }
  const int own = (count + most - 1) / most;
  int all = 0;
  int at = block_prefix(own, sums, &all);
  for (int done = 0; done < count; done += most)
    tiles[at++] = {expert, begin + done, min(most, count - done)};
  if (threadIdx.x == 0) *n_tiles = all;
}

}  // namespace

GpuError sort_pairs(const Launch& launch, const FfnArgs& args, const TilesScratch& scratch) {
  return launch_kernel(launch, sort_kernel, dim3(static_cast<unsigned>(args.moe.n_expert)),
                       dim3(kThreads), 0, args.moe.ids, args.rows * args.moe.n_used, scratch.list,
                       scratch.first);
}

GpuError cover_pairs(const Launch& launch, const FfnArgs& args, const TilesScratch& scratch) {
  return launch_kernel(launch, tile_table_kernel, dim3(1), dim3(kMaxExperts), 0, scratch.first,
                       args.moe.n_expert, args.moe.table, expert_tile_tokens(launch, args),
                       scratch.tiles, scratch.n_tiles);
}

}  // namespace tessera::gpu
