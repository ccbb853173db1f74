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

// Super-block `index` of `n` that lie together, plane by plane.
template <BlockType kType>
__device__ __forceinline__ void load_super_here(RawSuper& raw, std::uint32_t supers, int n,
                                                int index, int lane) {
  const int g = static_cast<int>(static_cast<unsigned>(lane) / 4), t = lane & 3;
  const auto at = [&](int offset) { return supers + static_cast<std::uint32_t>(offset); };
  const std::uint32_t quants = at(index * 2048 + lane * 16);
#pragma unroll
  for (int i = 0; i < 4; ++i) put_words(raw.q[i], load_shared<uint4>(quants + i * 512u));
  if constexpr (kType == BlockType::Q4_K) {
    put_words(raw.s, load_shared<uint2>(at(n * 2048 + index * 256 + g * 8 + t * 64)));
    put_words(raw.d, load_shared<uint2>(at(n * 2304 + index * 64 + g * 8)));
  } else {
    const std::uint32_t extra = at(n * 2048 + index * 1024 + lane * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) put_words(raw.x[i], load_shared<uint2>(extra + i * 256u));
    const std::uint32_t scales =
        at(n * 3072 + index * 256 + g * 8 + (t >> 1) * 64 + (t & 1) * 4);
    raw.s[0] = load_shared<std::uint32_t>(scales);
    raw.s[1] = load_shared<std::uint32_t>(scales + 128);
    raw.d[0] = load_shared<std::uint32_t>(at(n * 3328 + index * 32 + g * 4));
  }
}
// What a lane reads of a rounded super-block.
template <BlockType kType>
__device__ __forceinline__ RowPart<kType> row_part_here(std::uint32_t row, int lane) {
  const auto read = [&](int at, auto& to) {
    to = load_shared<std::remove_reference_t<decltype(to)>>(row + static_cast<std::uint32_t>(at));
  };
  return row_part<kType>(lane, read);
}

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
__device__ __forceinline__ void put_sum(float sum, int lane, float* shares) {
  const unsigned i = static_cast<unsigned>(lane);
  if (i % 4 < 2) shares[i / 4 + i % 4 * 8] = sum;
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

// A group of 32 columns, one a lane, rounded as rounded_group() does, to four records of two words
// of levels: the first has the scale too, the second the sums, the third `square`.
__device__ __forceinline__ void pass_group_here(float value, float square, unsigned number,
                                                int lane, Record* to) {
  constexpr unsigned kAll = 0xffffffffu;
  const GroupScale s = group_scale(__reduce_max_sync(kAll, __float_as_uint(value) & 0x7fffffffu));
  const int level = s.broken ? 0 : __float2int_rn(value * s.inverse);
  unsigned word = (static_cast<unsigned>(level) & 255u) << (lane % 4 * 8);
  const int sums = __reduce_add_sync(kAll, lane < 16 ? level : level * 65536);
  word |= shuffle_xor(word, 1);
  word |= shuffle_xor(word, 2);
  const unsigned low = shuffle(word, lane * 4), high = shuffle(word, lane * 4 + 16);
  const unsigned more = lane == 0   ? __float_as_uint(s.scale)
                        : lane == 1 ? static_cast<unsigned>(sums)
                                    : __float_as_uint(square);
  if (lane < 4) pass_record(to + lane, low, high, more, number);
}
static __device__ __noinline__ void pass_group(float value, float square, unsigned number,
                                               int lane, Record* to) {
  pass_group_here(value, square, number, lane, to);
}
// The warp's 256 columns, a record a lane as pass_group() made them, to a super-block. `heads`: the
// third records of four groups make 1 / rms of a head.
static __device__ __noinline__ void put_records(Record v, int lane, bool heads, float eps,
                                                int to_at) {
  char* to = shared_bytes() + to_at;
  const unsigned sums = shuffle(v.z, (lane & 28) + 1);
  float factor = 1.0f;
  if (heads) {
    float square = __uint_as_float(v.z);
    square += shuffle_xor(square, 4);
    square += shuffle_xor(square, 8);
    factor = shuffle(inverse_root(square / static_cast<float>(kDim) + eps), (lane & 28) + 2);
  }
  put_group({v.x, v.y, __uint_as_float(v.z), static_cast<int>(sums)}, factor, lane & 3, lane >> 2,
            to);
  __syncwarp();
}

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

// Of a row that arrives, a lane's of the warp's 256 columns.
__device__ __forceinline__ Eight await_eight(const Value* row, int warp, int lane,
                                             unsigned number) {
  const auto* at = reinterpret_cast<const Record*>(row + warp * kSuperCols) + lane;
  Pair a(at), b(at + kWarp), c(at + 2 * kWarp), d(at + 3 * kWarp);
  const auto here = [&] {
    return a.here(number) && b.here(number) && c.here(number) && d.here(number);
  };
  for (int looks = 0; !__all_sync(0xffffffffu, here()); ++looks) {
    if (looks > kPatience) give_up();
    a.look(number), b.look(number), c.look(number), d.look(number);
  }
  __syncwarp();
  const auto f = [](unsigned x) { return __uint_as_float(x); };
  return {{f(a.v.x), f(a.v.z), f(b.v.x), f(b.v.z)}, {f(c.v.x), f(c.v.z), f(d.v.x), f(d.v.z)}};
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
