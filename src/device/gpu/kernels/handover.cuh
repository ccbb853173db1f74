// Values between GPUs, each with its number, in one access of 8 bytes (handover.h).
#pragma once

#include "device/gpu/kernels/handover.h"
#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {

#ifdef TESSERA_GPU_PTX

// {f32, number}
using Handed = uint2;

__device__ __forceinline__ void hand_value(Handed* place, float value, unsigned number) {
  asm volatile(
      "{\n.reg .b64 v;\nmov.b64 v, {%1, %2};\nst.relaxed.sys.global.b64 [%0], v;\n}" ::"l"(place),
      "r"(__float_as_uint(value)), "r"(number)
      : "memory");
}
__device__ __forceinline__ Handed look_for_handed(const Handed* place) {
  Handed v;
  asm volatile("{\n.reg .b64 v;\nld.relaxed.sys.global.b64 v, [%2];\nmov.b64 {%0, %1}, v;\n}"
               : "=r"(v.x), "=r"(v.y)
               : "l"(place)
               : "memory");
  return v;
}
__device__ __forceinline__ std::int64_t clock_ns() {
  std::int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
// The lanes leave together (await_value() in run_values.cuh says why). Who has handed nothing yet
// may be at work for long: a clock says when it is too late.
static __device__ __noinline__ float take_value(const Handed* place, unsigned number,
                                                std::int64_t most_ns) {
  constexpr int kLooksAClock = 64;
  const unsigned lanes = __activemask();
  const std::int64_t begin = clock_ns();
  Handed v = look_for_handed(place);
  for (int looks = 1; !__all_sync(lanes, v.y == number); ++looks) {
    if (looks % kLooksAClock == 0 && clock_ns() - begin > most_ns) __trap();
    if (v.y != number) v = look_for_handed(place);
  }
  return __uint_as_float(v.x);
}

#endif

}  // namespace tessera::gpu
