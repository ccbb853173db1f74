// Values that pass from block to block of one kernel without a barrier: each is stored together
// with a number that says which layer of which run it belongs to, and who needs it looks until it
// is there. One store and one load of 8 or 16 bytes, which the hardware does not divide: no fence,
// which would wait for all of a thread's memory traffic, and nothing to clear.
//
// One set of places serves all layers. Who writes a value of the next layer has read values that
// every block made behind its reads of this one: all is relaxed, and data alone orders it. Numbers
// last for kMostRuns runs, some day of tokens, then the host clears the places.
//
//   pass_value(to, x, number);                    // one block
//   const float x = await_value(to, number);      // any block; to: the same place
#pragma once

#include "device/gpu/kernels/bulk_copy.cuh"

namespace tessera::gpu::run {

#ifdef TESSERA_GPU_WGMMA

// {f32, number}
using Value = uint2;
// {three words, number}
using Record = uint4;

__device__ __forceinline__ Value look_at(const Value* place) {
  Value v;
  asm volatile("{\n.reg .b64 v;\nld.relaxed.gpu.global.b64 v, [%2];\nmov.b64 {%0, %1}, v;\n}"
               : "=r"(v.x), "=r"(v.y)
               : "l"(place)
               : "memory");
  return v;
}
// A record, or two values that lie together, each whole.
__device__ __forceinline__ Record look_at(const Record* place) {
  std::uint64_t low, high;
  asm volatile("{\n.reg .b128 v;\nld.relaxed.gpu.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;\n}"
               : "=l"(low), "=l"(high)
               : "l"(place)
               : "memory");
  return make_uint4(static_cast<unsigned>(low), static_cast<unsigned>(low >> 32),
                    static_cast<unsigned>(high), static_cast<unsigned>(high >> 32));
}
__device__ __forceinline__ void pass_value(Value* place, float value, unsigned number) {
  asm volatile(
      "{\n.reg .b64 v;\nmov.b64 v, {%1, %2};\nst.relaxed.gpu.global.b64 [%0], v;\n}" ::"l"(place),
      "r"(__float_as_uint(value)), "r"(number)
      : "memory");
}
__device__ __forceinline__ void pass_record(Record* place, unsigned a, unsigned b, unsigned c,
                                            unsigned number) {
  asm volatile(
      "{\n.reg .b64 low, high;\n.reg .b128 v;\nmov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\n"
      "mov.b128 v, {low, high};\nst.relaxed.gpu.global.b128 [%0], v;\n}" ::"l"(place),
      "r"(a), "r"(b), "r"(c), "r"(number)
      : "memory");
}

// Looks, before a block that waits ends the kernel with an error: a second and more, as long as a
// look takes.
inline constexpr int kPatience = 2000000;
static __device__ __noinline__ void give_up() {
  __trap();
}
// Waiting is called, not copied: a layer runs each of its instructions once, and their number is
// what it takes to fetch them. Lanes vote: of a loop that each leaves by itself they come out
// apart, and run what follows one after the other (in ffn_next.cuh 2.5 us in place of 0.5).
static __device__ __noinline__ float await_value(const Value* place, unsigned number) {
  const unsigned lanes = __activemask();
  Value v = look_at(place);
  for (int looks = 0; !__all_sync(lanes, v.y == number); ++looks) {
    if (looks > kPatience) give_up();
    if (v.y != number) v = look_at(place);
  }
  return __uint_as_float(v.x);
}
static __device__ __noinline__ Record await_record(const Record* place, unsigned number) {
  const unsigned lanes = __activemask();
  Record v = look_at(place);
  for (int looks = 0; !__all_sync(lanes, v.w == number); ++looks) {
    if (looks > kPatience) give_up();
    if (v.w != number) v = look_at(place);
  }
  return v;
}
// What was looked at before, if it was there.
__device__ __forceinline__ float await_value(Value seen, const Value* place, unsigned number) {
  return seen.y == number ? __uint_as_float(seen.x) : await_value(place, number);
}
__device__ __forceinline__ Record await_record(const Record& seen, const Record* place,
                                               unsigned number) {
  return seen.w == number ? seen : await_record(place, number);
}
// Two values that are awaited among others, all of which are asked for at once.
struct Pair {
  __device__ __forceinline__ explicit Pair(const Record* at) : place(at), v(look_at(at)) {}
  const Record* place;
  Record v;
  __device__ __forceinline__ bool here(unsigned number) const {
    return v.y == number && v.w == number;
  }
  __device__ __forceinline__ void look(unsigned number) {
    if (!here(number)) v = look_at(place);
  }
};
// A barrier in shared memory (bulk_copy.cuh), waited for with the same patience.
__device__ __forceinline__ bool barrier_passed(std::uint32_t barrier, unsigned phase) {
  unsigned passed;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(passed)
      : "r"(barrier), "r"(phase)
      : "memory");
  return passed != 0;
}
static __device__ __noinline__ void await_barrier_long(std::uint32_t barrier, unsigned phase) {
  for (int looks = 0; !barrier_passed(barrier, phase); ++looks)
    if (looks > kPatience) give_up();
}
__device__ __forceinline__ void await_barrier(std::uint32_t barrier, unsigned phase) {
  if (!barrier_passed(barrier, phase)) await_barrier_long(barrier, phase);
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

#endif

}  // namespace tessera::gpu::run
