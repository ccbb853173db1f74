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
template <BlockType kType>
__device__ __forceinline__ void dot_here(std::uint32_t supers, int n, int index, std::uint32_t row,
                                         int lane, RowSums& sums) {
  RawSuper raw;
  load_super_here<kType>(raw, supers, n, index, lane);
  const auto read = [&](int at, auto& to) {
    to = load_shared<std::remove_reference_t<decltype(to)>>(row + static_cast<std::uint32_t>(at));
  };
  const RowPart<kType> part = row_part<kType>(lane, read);
  // For the compiler, which would load late: all loads are to be ahead of the first product. Those
  // of Q6_K are too many for the registers.
  if constexpr (kType == BlockType::Q4_K) __syncwarp();
  dot_super<kType>(raw, part, lane, sums);
}

// The product of a warp's 16 rows with a super-block of the row: in lanes of even t row g's, in the
// others row g + 8's (supers.cuh).
static __device__ __noinline__ float super_sum(BlockType type, std::uint32_t supers, int n,
                                               int index, std::uint32_t row, unsigned thread) {
  const int lane = static_cast<int>(thread % kWarp);
  RowSums sums;
  if (type == BlockType::Q4_K)
    dot_here<BlockType::Q4_K>(supers, n, index, row, lane, sums);
  else
    dot_here<BlockType::Q6_K>(supers, n, index, row, lane, sums);
  return sums.own_total(lane);
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

static __device__ __noinline__ uint4 round_called(float4 low, float4 high) {
  const RoundedGroup r = rounded_group({low, high});
  return make_uint4(r.low, r.high, __float_as_uint(r.scale), static_cast<unsigned>(r.sums));
}

// A group of 32 columns rounded, as four records of two words of levels: the first has the scale
// too, the second the sums, the third `square`. Lanes 0 to 3 hold the columns as t of four.
__device__ __forceinline__ void pass_group(const Eight& v, float square, unsigned number, int lane,
                                           Record* to) {
  const uint4 r = round_called(v.low, v.high);
  const unsigned more = lane == 0 ? r.z : lane == 1 ? r.w : __float_as_uint(square);
  if (lane < 4) pass_record(to + lane, r.x, r.y, more, number);
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

// The 16 warps; the first eight of them.
__device__ __forceinline__ void readers_sync() {
  asm volatile("bar.sync 1, 512;" ::: "memory");
}
__device__ __forceinline__ void row_warps_sync() {
  asm volatile("bar.sync 2, 256;" ::: "memory");
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
  const auto* at = reinterpret_cast<const Record*>(from + warp * kSuperCols + eight_at(lane));
  const Record* places[4] = {at, at + 1, at + 8, at + 9};
  Record p[4];
  await_pairs(places, number, p);
  __syncwarp();
  const auto f = [](unsigned x) { return __uint_as_float(x); };
  Eight v{{f(p[0].x), f(p[0].z), f(p[1].x), f(p[1].z)},
          {f(p[2].x), f(p[2].z), f(p[3].x), f(p[3].z)}};
  float square = squares(v);
  v = times(v, weight);
  // Others wait for the plain rows: they come ahead of the rounding.
  if (n > 0) {
    square = warp_sum(square);
    if (lane == 0) s->squares[which][warp] = square;
  }
#pragma unroll 1
  for (int r = 0; r < n; r += 2) {
    const float* w = plain + (r + 1) * kCols;
    const float first = warp_sum(dot_eight(load_eight(w, lane), v, 0.0f));
    float second = 0;
    if (r + 1 < n) second = warp_sum(dot_eight(load_eight(w + kCols, lane), v, 0.0f));
    if (lane == 0) s->plain_shares[r][warp] = first, s->plain_shares[r + 1][warp] = second;
  }
  if (n > 0) row_warps_sync();
  if (static_cast<int>(threadIdx.x) < n) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kSupers; ++i) total += s->plain_shares[threadIdx.x][i];
    pass_value(out + threadIdx.x, total * row_factor(which, eps), number);
  }
  __syncwarp();
  const uint4 r = round_called(v.low, v.high);
  put_group({r.x, r.y, __uint_as_float(r.z), static_cast<int>(r.w)}, 1.0f, lane & 3, lane >> 2,
            s->row + warp * kSuperBytes);
  if (n == 0) {
    square = warp_sum(square);
    if (lane == 0) s->squares[which][warp] = square;
  }
}

#endif

}  // namespace tessera::gpu::run
