// How dense_run.h's row warps wait for what other blocks make (run_values.cuh).
//
// A row is awaited for most of a layer, by eight warps of each block. What all their lanes ask for
// again and again crosses the chip, and a card at its limit of power pays for that with its clock.
// So a warp that has seen nothing yet lets four lanes look, with naps, until something of it is
// there: the rest is on its way for longer than a nap.
#pragma once

#include "device/gpu/kernels/run_supers.cuh"

namespace tessera::gpu::dense_run {

#ifdef TESSERA_GPU_WGMMA

inline constexpr unsigned kNap = 250;  // ns

// By a whole warp. `number_at`: where what the lane is going to look for has its number.
__device__ __forceinline__ void await_sign(const unsigned* number_at, unsigned number) {
  const bool looks = run::this_lane() % 8 == 0;
  unsigned seen = number - 1;
  for (int n = 0;; ++n) {
    if (n > run::kPatience) run::give_up();
    if (looks)
      asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(seen) : "l"(number_at) : "memory");
    if (__any_sync(0xffffffffu, seen == number)) return;
    __nanosleep(kNap);
  }
}

__device__ __forceinline__ Eight await_eight(const run::Value* row, int super, int lane,
                                             unsigned number) {
  const run::Record* at = run::EightSeen::place(row, super, lane);
  run::EightSeen seen(at);
  if (!__any_sync(0xffffffffu, seen.a.here(number) || seen.c.here(number))) {
    await_sign(&at->y, number);
    seen.look(number);
  }
  return seen.await(number);
}
static __device__ __noinline__ run::Record await_record(const run::Record* place,
                                                        unsigned number) {
  run::Record v = run::look_at(place);
  if (!__any_sync(0xffffffffu, v.w == number)) {
    await_sign(&place->w, number);
    v = run::look_at(place);
  }
  for (int looks = 0; !__all_sync(0xffffffffu, v.w == number); ++looks) {
    if (looks > run::kPatience) run::give_up();
    if (v.w != number) v = run::look_at(place);
  }
  return v;
}

#endif

}  // namespace tessera::gpu::dense_run
