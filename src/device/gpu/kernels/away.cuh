// How a row asks the host for experts that the device lacks (AwayArgs in experts_away.h).
//
// The host's memory is seen as it is by volatile accesses alone; a fence over the whole system
// stands between what is written and the number that tells of it, and likewise when reading.
// Cost: 8 KB over the link there, and back where a row lacks some, and two looks across it: some
// 4 us a layer.
#pragma once

#include "device/gpu/kernels/brought.cuh"
#include "device/gpu/kernels/ffn.cuh"

namespace tessera::gpu {

// By slot, a bit for each of a row's experts that is neither here nor read over the link.
__device__ __forceinline__ std::uint32_t slots_away(const MoeArgs& moe, const std::int32_t* ids) {
  std::uint32_t away = 0;
  for (int slot = 0; slot < moe.n_used; ++slot)
    away |= expert_at(moe, moe.table, ids[slot]) == nullptr ? 1u << slot : 0u;
  return away;
}

// By a whole block: which of its row's experts are read over the link. Ends with a barrier.
__device__ inline void take_reads(const MoeArgs& moe, const AwayArgs& args,
                                  const Foreseen& foreseen, std::int64_t row, std::int32_t* ids) {
  constexpr std::int32_t kNone = 0x7fffffff;
  __shared__ std::int32_t turns[kMaxUsed];
  const int slot = static_cast<int>(threadIdx.x);
  std::int32_t id = 0, own = kNone;
  if (slot < moe.n_used) {
    id = ids[slot];
    if (moe.table[id] == nullptr && moe.linked[id] != nullptr)
      own = foreseen.of_row(row * moe.n_used, moe.n_used, moe.n_expert + id) ? id
                                                                             : moe.n_expert + id;
    turns[slot] = own;
  }
  __syncthreads();
  int n = 0, before = 0;
  for (int i = 0; i < moe.n_used && own != kNone; ++i) {
    n += turns[i] != kNone ? 1 : 0;
    before += turns[i] < own ? 1 : 0;
  }
  if (own != kNone && before < args.reads[n])
    ids[slot] = (foreseen.place_of(moe.n_expert + id) + 2) * moe.n_expert + id;
  __syncthreads();
}

// By a whole block: the row's residual begins its way. Whether it is wanted is not known yet, but
// what comes of the choice need not wait for it then.
__device__ inline void send_row(const AwayArgs& args, std::int64_t row, int n_embd,
                                const float* hidden) {
  const auto* from = reinterpret_cast<const float4*>(hidden + row * n_embd);
  auto* to = reinterpret_cast<float4*>(args.x + row * n_embd);
  for (int i = static_cast<int>(threadIdx.x); i < n_embd / 4; i += static_cast<int>(blockDim.x))
    to[i] = from[i];
}

// By a whole block, for its row.
__device__ inline void post_row(const AwayArgs& args, std::int64_t row, int n_used,
                                const std::int32_t* ids, const float* weights) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < n_used) {
    args.ids[row * n_used + thread] = ids[thread];
    if (args.weights != nullptr) args.weights[row * n_used + thread] = weights[thread];
  }
  __threadfence_system();
  __syncthreads();
  if (thread == 0) static_cast<volatile std::int32_t*>(args.posted)[row] = *args.step;
}

// By a whole block: whether the row's sums have come.
__device__ inline bool await_sums(const AwayArgs& args, std::int64_t row) {
  __shared__ int came;
  if (threadIdx.x == 0) {
    const std::int32_t step = *args.step;
    const volatile std::int32_t* answered = args.answered + row;
    volatile std::int32_t* given_up = args.given_up;
    const std::int64_t begin = clock64();
    bool waits = true;
    while (waits && *answered != step) {
      if (clock64() - begin > args.most_clocks) *given_up = step;
      waits = *given_up != step;
    }
    came = waits ? 1 : 0;
    __threadfence_system();
  }
  __syncthreads();
  return came != 0;
}

// Four of the host's sums, past all caches: a warp reads whole lines of the link.
__device__ __forceinline__ float4 answered_four(const AwayArgs& args, std::int64_t at) {
#ifdef TESSERA_GPU_PTX
  float4 v;
  asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(args.sums + at)
               : "memory");
  return v;
#else
  const auto* from = static_cast<const volatile float*>(args.sums) + at;
  return {from[0], from[1], from[2], from[3]};
#endif
}

}  // namespace tessera::gpu
