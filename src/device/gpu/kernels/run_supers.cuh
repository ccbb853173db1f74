// What kernels that keep whole layers (run.h, dense_run.h) do with super-blocks and rows in shared
// memory: weights that bulk copies brought, columns that are rounded and passed on, rows that
// arrive.
//
// Places in shared memory are passed as offsets, to products as addresses of 32 bits (address_of):
// a call that is given a pointer does not know that it is one to shared memory, and reads it by
// longer and slower ways.
#pragma once

#include "device/gpu/kernels/run_plan.h"
#include "device/gpu/kernels/run_values.cuh"
#include "device/gpu/kernels/shared_memory.cuh"
#include "device/gpu/kernels/supers.cuh"

namespace tessera::gpu::run {

#ifdef TESSERA_GPU_WGMMA

// Unsigned: the compiler does not know that threads are not below zero, and rounds quotients.
__device__ __forceinline__ int this_warp() {
  return static_cast<int>(threadIdx.x / static_cast<unsigned>(kWarp));
}
__device__ __forceinline__ int this_lane() {
  return static_cast<int>(threadIdx.x % static_cast<unsigned>(kWarp));
}

__device__ __forceinline__ char* shared_bytes() {
  TESSERA_DYNAMIC_SHARED(char, memory);
  return memory;
}
__device__ __forceinline__ int offset_of(const void* at) {
  return static_cast<int>(shared_address(at) - shared_address(shared_bytes()));
}

__device__ __forceinline__ std::uint32_t address_of(int offset) {
  return shared_address(shared_bytes()) + static_cast<std::uint32_t>(offset);
}
template <typename T>
__device__ __forceinline__ T load_shared(std::uint32_t at) {
  return *static_cast<const T*>(__cvta_shared_to_generic(at));
}

// What a run reads once shall not push out of L2 what passes between blocks.
__device__ __forceinline__ void copy_once(std::uint32_t to, const void* from, int bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
      : "memory");
}

// --- Weights ---

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
    const std::uint32_t scales = at(n * 2048 + index * 192 + t * 48);
    raw.s[0] = load_shared<std::uint32_t>(scales + g * 4u);
    raw.s[1] = load_shared<std::uint16_t>(scales + g * 2u + 32u);
    put_words(raw.d, load_shared<uint2>(at(n * 2240 + index * 64 + g * 8)));
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

__device__ __forceinline__ void put_sum(float sum, int lane, float* shares) {
  const unsigned i = static_cast<unsigned>(lane);
  if (i % 4 < 2) shares[i / 4 + i % 4 * 8] = sum;
}

// --- Rows ---

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

// What a lane has seen of its columns of the warp's 256 of a row that arrives.
struct EightSeen {
  Pair a, b, c, d;
  __device__ __forceinline__ explicit EightSeen(const Record* at)
      : a(at), b(at + kWarp), c(at + 2 * kWarp), d(at + 3 * kWarp) {}
  static __device__ __forceinline__ const Record* place(const Value* row, int warp, int lane) {
    return reinterpret_cast<const Record*>(row + warp * kSuperCols) + lane;
  }
  __device__ __forceinline__ bool here(unsigned number) const {
    return a.here(number) && b.here(number) && c.here(number) && d.here(number);
  }
  __device__ __forceinline__ void look(unsigned number) {
    a.look(number), b.look(number), c.look(number), d.look(number);
  }
  __device__ __forceinline__ Eight eight() const {
    const auto f = [](unsigned x) { return __uint_as_float(x); };
    return {{f(a.v.x), f(a.v.z), f(b.v.x), f(b.v.z)}, {f(c.v.x), f(c.v.z), f(d.v.x), f(d.v.z)}};
  }
};
__device__ __forceinline__ Eight await_eight(const Value* row, int warp, int lane,
                                             unsigned number) {
  EightSeen seen(EightSeen::place(row, warp, lane));
  for (int looks = 0; !__all_sync(0xffffffffu, seen.here(number)); ++looks) {
    if (looks > kPatience) give_up();
    seen.look(number);
  }
  __syncwarp();
  return seen.eight();
}

#endif

}  // namespace tessera::gpu::run
