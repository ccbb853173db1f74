// Attention of many rows with the warpgroup instruction: two warpgroups of 64 pairs, the sums of
// one as 64 x kDim floats in its registers.
//
// The products of the next page's keys are started first and then those of this page's values; the
// next weights are made while the latter run. Keys and values have two buffers each; a page's
// copies go on for as long as one turn of the loop takes, which has one barrier.
//
// Floor of a page, kDim = 256: 2,048 clocks of products (64 tokens and 128 pairs: 8.4 MFLOP) at the
// tensor units' full rate, 2,048 of shared memory (128 KB for the queries and keys, 64 KB for the
// values, 64 KB of copies, at 128 bytes a clock), 64 KB out of L2.
#pragma once

#include "device/gpu/kernels/attention_prefill.cuh"
#include "device/gpu/kernels/warpgroup.cuh"

namespace tessera::gpu {

// Tiles begin at multiples of 1024 bytes, which the block sees to.
template <int kDim>
inline constexpr int kGroupsShared = kQueryBytes<kDim> + 4 * kPageBytes<kDim> + 1024;

#ifdef TESSERA_GPU_WGMMA

// The ids of the pages whose values (`first`) and keys (`second`) are copied next. One more is
// always on its way.
class PageIds {
 public:
  __device__ PageIds(const AttentionArgs& args, const PrefillBlock& block)
      : table_(args.page_table + block.index * args.table_stride), last_(block.end - 1) {
    next_ = block.begin;
    step();
    step();
    step();
  }
  __device__ void step() {
    first = second;
    second = third_;
    third_ = table_[min(next_++, last_)];
  }
  std::int32_t first = 0, second = 0;

 private:
  const std::int32_t* table_;
  int last_, next_;
  std::int32_t third_ = 0;
};

template <int kDim>
struct PageTiles {
  char* keys;  // two of each
  char* values;

  __device__ __forceinline__ char* key(int turn) const { return keys + turn * kPageBytes<kDim>; }
  __device__ __forceinline__ char* value(int turn) const {
    return values + turn * kPageBytes<kDim>;
  }
};

// All groups of copies but the last kPending are there, for the products too, and every warp is
// past the products that it waited for.
template <int kPending>
__device__ __forceinline__ void await_copies() {
  copy_wait<kPending>();
  async_fence();
  __syncthreads();
}

template <int kDim>
__device__ __forceinline__ void start_scores(std::uint64_t queries, const char* keys,
                                             float (&scores)[8][4]) {
  const std::uint64_t k = swizzled_tile(shared_address(keys));
  group_fence();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step)
    group_multiply_shared<64>(
        &scores[0][0], queries + static_cast<unsigned>(step / 4 * kPairs * 8 + step % 4 * 2),
        k + static_cast<unsigned>(step / 4 * kPageTokens * 8 + step % 4 * 2), step > 0);
  group_commit();
}

template <int kDim>
__device__ __forceinline__ void start_values(const std::uint32_t (&weights)[4][4],
                                             const char* values, float (&out)[kDim / 8][4]) {
  const std::uint64_t v = turned_tile(shared_address(values), kPageTokens * 128);
  group_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)
    group_multiply<kDim, true>(&out[0][0], weights[step], v + static_cast<unsigned>(step * 128));
  group_commit();
}

__device__ __forceinline__ void halve_weights(const float (&scores)[8][4],
                                              std::uint32_t (&weights)[4][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) weights_of(scores, step, weights[step]);
}

template <int kDim>
__device__ __forceinline__ void attend_in_groups(const AttentionArgs& args, const __half* q,
                                                 char* raw) {
  char* queries = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const PageTiles<kDim> tiles{queries + kQueryBytes<kDim>,
                              queries + kQueryBytes<kDim> + 2 * kPageBytes<kDim>};
  const PrefillBlock block(args);
  if (block.pairs <= 0) return;
  PageIds ids(args, block);
  const auto copy_keys = [&](int page, std::int32_t id, int turn) {
    copy_page<kDim>(tiles.key(turn), page_at(args, id) + block.place.k, block.valid(page));
  };
  const auto copy_values = [&](int page, std::int32_t id, int turn) {
    copy_page<kDim>(tiles.value(turn), page_at(args, id) + block.place.v, block.valid(page));
  };
  const int last = block.end - 1;
  copy_queries<kDim>(queries, args, block, q);
  copy_keys(block.begin, ids.first, 0);
  copy_commit();
  copy_values(block.begin, ids.first, 0);
  if (block.begin < last) copy_keys(block.begin + 1, ids.second, 1);
  copy_commit();
  Pairs p(block);
  float scores[8][4] = {}, out[kDim / 8][4] = {}, factor[2];
  std::uint32_t weights[4][4];
  const std::uint64_t own = swizzled_tile(
      shared_address(queries) + static_cast<std::uint32_t>(threadIdx.x) / 128 * (64 * 128));
  await_copies<1>();
  start_scores<kDim>(own, tiles.key(0), scores);
  group_wait<0>();
  group_results<64>(&scores[0][0]);
  weigh_page(args, block, block.begin, p, scores, factor);
  halve_weights(scores, weights);
  int turn = 0;
  for (int page = block.begin; page < last; ++page, turn ^= 1) {
    ids.step();
    await_copies<0>();
    start_scores<kDim>(own, tiles.key(turn ^ 1), scores);
    copy_values(page + 1, ids.first, turn ^ 1);
    if (page + 1 < last) copy_keys(page + 2, ids.second, turn);
    copy_commit();
    start_values<kDim>(weights, tiles.value(turn), out);
    group_wait<1>();
    group_results<64>(&scores[0][0]);
    weigh_page(args, block, page + 1, p, scores, factor);
    group_wait<0>();
    group_results<kDim>(&out[0][0]);
    // Often no row of the warp has a new highest score.
    if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
      shrink<kDim>(factor, out);
      group_results<kDim>(&out[0][0]);
    }
    halve_weights(scores, weights);
  }
  await_copies<0>();
  start_values<kDim>(weights, tiles.value(turn), out);
  group_wait<0>();
  group_results<kDim>(&out[0][0]);
  store_pairs<kDim>(args, block, p, out, static_cast<int>(threadIdx.x) / kWarp * 16, queries);
}

#endif

}  // namespace tessera::gpu
