// What the warps of run.h's kernel compute with: products of super-blocks that lie in shared memory
// with rounded columns, the rounding of a row that arrives, and of what is passed on.
//
// Arithmetic and its order are those of supers.cuh and of the kernels of one row. What a layer runs
// at several places is called, not copied: above 64 KB of code the kernel slows down.
#pragma once

#include "device/gpu/kernels/gated_delta.cuh"
#include "device/gpu/kernels/project_supers.cuh"
#include "device/gpu/kernels/run_ring.cuh"

namespace tessera::gpu::run {

#ifdef TESSERA_GPU_WGMMA

// --- Barriers of warps ---

// All 16; the first eight, which take rows; the others.
__device__ __forceinline__ void readers_sync() {
  asm volatile("bar.sync 1, 512;" ::: "memory");
}
__device__ __forceinline__ void row_warps_sync() {
  asm volatile("bar.sync 2, 256;" ::: "memory");
}
__device__ __forceinline__ void other_warps_sync() {
  asm volatile("bar.sync 3, 256;" ::: "memory");
}
// The first eight have rounded a row and go on; the others wait for it.
__device__ __forceinline__ void row_is_there() {
  asm volatile("bar.arrive 4, 512;" ::: "memory");
}
__device__ __forceinline__ void await_row() {
  asm volatile("bar.sync 4, 512;" ::: "memory");
}
inline constexpr int kFreeBarrier = 5;  // the first that none of these is

// --- Products ---

// The product of a warp's 16 rows with a super-block of the row: in lanes of even t row g's, in the
// others row g + 8's (supers.cuh).
template <BlockType kType>
__device__ __forceinline__ float dot_here(const RawSuper& raw, std::uint32_t row, int lane) {
  const RowPart<kType> part = row_part_here<kType>(row, lane);
  // For the compiler, which would load late: all loads are to be ahead of the first product. Those
  // of Q6_K are too many for the registers.
  if constexpr (kType == BlockType::Q4_K) __syncwarp();
  RowSums sums;
  dot_super<kType>(raw, part, lane, sums);
  return sums.own_total(lane);
}
static __device__ __noinline__ float super_sum(BlockType type, std::uint32_t supers, int n,
                                               int index, std::uint32_t row, unsigned thread) {
  const int lane = static_cast<int>(thread % kWarp);
  RawSuper raw;
  if (type == BlockType::Q4_K) {
    load_super_here<BlockType::Q4_K>(raw, supers, n, index, lane);
    return dot_here<BlockType::Q4_K>(raw, row, lane);
  }
  load_super_here<BlockType::Q6_K>(raw, supers, n, index, lane);
  return dot_here<BlockType::Q6_K>(raw, row, lane);
}

// Products of two tiles, of eight super-blocks each, with super-block `index` of the row, when that
// is there: weights are on their way ahead of it, and what one product waits for, the other one
// computes through.
static __device__ __noinline__ float2 two_sums(BlockType first_type, std::uint32_t first,
                                               BlockType second_type, std::uint32_t second,
                                               int index, unsigned thread) {
  constexpr BlockType kType = BlockType::Q4_K;
  const std::uint32_t row = row_address(index);
  if (first_type != kType || second_type != kType) {
    await_row();
    return {super_sum(first_type, first, 8, index, row, thread),
            super_sum(second_type, second, 8, index, row, thread)};
  }
  const int lane = static_cast<int>(thread % kWarp);
  RawSuper raw[2];
  load_super_here<kType>(raw[0], first, 8, index, lane);
  load_super_here<kType>(raw[1], second, 8, index, lane);
  await_row();
  const RowPart<kType> part = row_part_here<kType>(row, lane);
  __syncwarp();  // as above
  RowSums sums[2];
  dot_super<kType>(raw[0], part, lane, sums[0]);
  dot_super<kType>(raw[1], part, lane, sums[1]);
  return {sums[0].own_total(lane), sums[1].own_total(lane)};
}
static __device__ __noinline__ float silu_called(float x) {
  return silu(x);
}

// 1 / rms of the whole row, of which s->squares[which] are the squares.
static __device__ __noinline__ float row_factor(int which, float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kSupers; ++i) sum += shared()->squares[which][i];
  return inverse_root(sum / static_cast<float>(kCols) + eps);
}

// --- Rounding ---

// A warp's 256 columns, rounded to super-block `index`.
static __device__ __noinline__ void round_here(Eight v, int lane, int index) {
  round_super(v, 1.0f, lane, shared()->row + index * kSuperBytes);
}

// The product of a warp's super-block with 256 columns that arrive as records, `place` the lane's,
// and are left in super-block `item` of the row. Weights are on their way ahead of them.
template <BlockType kType>
__device__ __forceinline__ float dot_records(std::uint32_t supers, int n, int index,
                                             const Record* place, bool heads, float eps, int item,
                                             unsigned number, int lane) {
  RawSuper raw;
  load_super_here<kType>(raw, supers, n, index, lane);
  const Record v = await_record(place, number);
  __syncwarp();
  put_records(v, lane, heads, eps, offset_of(shared()->row) + item * kSuperBytes);
  return dot_here<kType>(raw, row_address(item), lane);
}
static __device__ __noinline__ float records_sum(BlockType type, std::uint32_t supers, int n,
                                                 int index, const Record* place, bool heads,
                                                 float eps, int item, unsigned number) {
  const int lane = this_lane();
  if (type == BlockType::Q4_K)
    return dot_records<BlockType::Q4_K>(supers, n, index, place, heads, eps, item, number, lane);
  return dot_records<BlockType::Q6_K>(supers, n, index, place, heads, eps, item, number, lane);
}

// warp_sum of each.
template <int kN>
__device__ __forceinline__ void warp_sums(float (&value)[kN]) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2)
#pragma unroll
    for (float& v : value) v += shuffle_xor(v, mask);
}

// A row arrives, normed with the weights that the entry begins with; one of the first eight warps
// takes 256 of its columns, rounds them to s->row and leaves their squares in s->squares[which].
// The products with the `n` plain rows behind the weights are passed to `out`, with 1 / rms.
static __device__ __noinline__ void take_row(const Value* from, int entry, int n, Value* out,
                                             int which, float eps, unsigned number) {
  Shared* s = shared();
  const int warp = this_warp();
  const int lane = this_lane();
  const auto* plain = reinterpret_cast<const float*>(shared_bytes() + entry) + warp * kSuperCols;
  const Eight weight = load_eight(plain, lane);
  Eight v = await_eight(from, warp, lane, number);
  const float square = squares(v);
  v = times(v, weight);
  // Others wait for the plain rows: they come ahead of the rounding. Sums at once; where there
  // is one row, the second is not read.
  if (n > 0) {
    float sums[2] = {dot_eight(load_eight(plain + kCols, lane), v, 0.0f),
                     dot_eight(load_eight(plain + 2 * kCols, lane), v, 0.0f)};
    warp_sums(sums);
    const float sum = sum_of_groups(square);
    if (lane == 0) {
      s->squares[which][warp] = sum;
      s->plain_shares[0][warp] = sums[0], s->plain_shares[1][warp] = sums[1];
    }
    row_warps_sync();
  }
  if (static_cast<int>(threadIdx.x) < n) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kSupers; ++i) total += s->plain_shares[threadIdx.x][i];
    pass_value(out + threadIdx.x, total * row_factor(which, eps), number);
  }
  __syncwarp();
  round_here(v, lane, warp);
  if (n == 0) {
    const float sum = sum_of_groups(square);
    if (lane == 0) s->squares[which][warp] = sum;
  }
}

#endif

}  // namespace tessera::gpu::run
