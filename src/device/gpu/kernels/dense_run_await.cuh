// How dense_run.h's row warps wait for what other blocks make (run_values.cuh), all but a delta
// net's gate, which they ask for last.
//
// A row is awaited for most of a layer, by eight warps of each block. What all their lanes ask for
// again and again crosses the chip, and a card at its limit of power pays for that with its clock.
// So a warp that has seen nothing yet lets four lanes look, with naps, until something of it is
// there. The rest of a row that many blocks make is on its way for longer than a nap; what one
// block makes comes at once, and is seen a nap later.
//
//   await_all(seen, number);   // seen: what a lane looks for; its constructor looks once
//
//   bool Seen::here(number)          // all of it
//   bool Seen::any(number)           // a part, the one with the sign or one that comes with it
//   void Seen::look(number)          // looks at what is not there
//   void Seen::again()               // at all anew: nothing stays in registers over the naps
//   const unsigned* Seen::sign()     // where a part has its number
#pragma once

#include "device/gpu/kernels/run_supers.cuh"

namespace tessera::gpu::dense_run {

#ifdef TESSERA_GPU_WGMMA

inline constexpr unsigned kNap = 250;  // ns, about: the hardware takes up to twice as long

// By a whole warp. A hint, which proves nothing: number and value have to be read together.
__device__ __forceinline__ void await_sign(const unsigned* number_at, unsigned number) {
  const bool looks = run::this_lane() % 8 == 0;
  unsigned seen = number - 1;
  for (int n = 0;; ++n) {
    if (n > run::kPatience / 2) run::give_up();  // a look and a nap take twice as long as a look
    if (looks)
      asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(seen) : "l"(number_at) : "memory");
    if (__any_sync(0xffffffffu, seen == number)) return;
    __nanosleep(kNap);
  }
}
// By a whole warp. Inlined, unlike run::await_value(): with a call all who call this would have
// registers to save.
template <typename Seen>
__device__ __forceinline__ void await_all(Seen& seen, unsigned number) {
  if (!__any_sync(0xffffffffu, seen.any(number))) {
    await_sign(seen.sign(), number);
    seen.again();
  }
  for (int looks = 0; !__all_sync(0xffffffffu, seen.here(number)); ++looks) {
    if (looks > run::kPatience) run::give_up();
    seen.look(number);
  }
  __syncwarp();
}

// Of a row's super-block, as run::await_eight().
struct SuperSeen : run::EightSeen {
  using EightSeen::EightSeen;
  // Of each 32 columns there are two tiles.
  __device__ __forceinline__ bool any(unsigned number) const {
    return a.here(number) || c.here(number);
  }
  __device__ __forceinline__ void again() { *this = SuperSeen(a.place); }
  __device__ __forceinline__ const unsigned* sign() const { return &a.place->y; }
};
__device__ __forceinline__ Eight await_eight(const run::Value* row, int super, int lane,
                                             unsigned number) {
  SuperSeen seen(run::EightSeen::place(row, super, lane));
  await_all(seen, number);
  return seen.eight();
}

struct RecordSeen {
  const run::Record* place;
  run::Record v;
  __device__ __forceinline__ explicit RecordSeen(const run::Record* at)
      : place(at), v(run::look_at(at)) {}
  __device__ __forceinline__ bool here(unsigned number) const { return v.w == number; }
  __device__ __forceinline__ bool any(unsigned number) const { return here(number); }
  __device__ __forceinline__ void look(unsigned number) {
    if (!here(number)) again();
  }
  __device__ __forceinline__ void again() { v = run::look_at(place); }
  __device__ __forceinline__ const unsigned* sign() const { return &place->w; }
};
static __device__ __noinline__ run::Record await_record(const run::Record* place,
                                                        unsigned number) {
  RecordSeen seen(place);
  await_all(seen, number);
  return seen.v;
}

// kN values of the lane's, a warp's width from each other.
template <int kN>
struct ValuesSeen {
  const run::Value* from;
  run::Value v[kN];
  __device__ __forceinline__ explicit ValuesSeen(const run::Value* at) : from(at) { again(); }
  __device__ __forceinline__ bool here(unsigned number) const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kN; ++i) all = all && v[i].y == number;
    return all;
  }
  __device__ __forceinline__ bool any(unsigned number) const { return v[0].y == number; }
  __device__ __forceinline__ void look(unsigned number) {
#pragma unroll
    for (int i = 0; i < kN; ++i)
      if (v[i].y != number) v[i] = run::look_at(from + i * kWarp);
  }
  __device__ __forceinline__ void again() {
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = run::look_at(from + i * kWarp);
  }
  __device__ __forceinline__ const unsigned* sign() const { return &from->y; }
};

#endif

}  // namespace tessera::gpu::dense_run
