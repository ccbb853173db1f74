// The pairs of a routed layer in expert order, rows rising within one, and the tiles that cover
// them. One block an expert counts and lists its own: no atomics, so the order is always the same.
// Floor: a launch each; 32,768 ids are 128 KB, read by every block from L2.
#include "device/gpu/kernels/ffn_tiles.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;

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

__global__ void __launch_bounds__(kThreads)
    sort_kernel(const std::int32_t* ids, int pairs, std::int32_t* list, std::int32_t* first) {
  __shared__ int sums[kThreads / kWarp];
  chain_wait();
  chain_trigger();
  const int expert = static_cast<int>(blockIdx.x);
  const int each = (pairs + kThreads - 1) / kThreads;
  const int begin = min(pairs, static_cast<int>(threadIdx.x) * each),
            end = min(pairs, begin + each);
  int less = 0, equal = 0;
  for (int i = begin; i < end; ++i) {
    const int id = ids[i];
    less += id < expert ? 1 : 0;
    equal += id == expert ? 1 : 0;
  }
  int all_less = 0, all_equal = 0;
  block_prefix(less, sums, &all_less);
  int at = all_less + block_prefix(equal, sums, &all_equal);
  for (int i = begin; i < end; ++i)
    if (ids[i] == expert) list[at++] = i;
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
                       args.moe.n_expert, args.moe.table, expert_tile_tokens(args), scratch.tiles,
                       scratch.n_tiles);
}

}  // namespace tessera::gpu
