// Bulk copies from global to shared memory and the barriers there that count their bytes (Hopper):
// one thread asks for a whole tile, and those who need it wait for the barrier. In a cluster of two
// blocks a tile may go to both at once. Only where TESSERA_GPU_WGMMA is defined.
//
//   barrier_init(full, 1), barrier_init(empty, readers);  // one thread; then cluster_sync()
//   barrier_wait(empty, phase ^ 1);                       // who copies: until nobody reads
//   barrier_expect(full, bytes);
//   bulk_copy(tile, from, bytes, full);
//   barrier_wait(full, phase);                            // who reads
//   barrier_arrive(empty, 0), barrier_arrive(empty, 1);   // done: in both blocks
//
// Addresses are those of shared_address(). `phase` is 0 for a barrier's first round, then changes
// with each.
#pragma once

#include "device/gpu/kernels/warpgroup.cuh"

namespace tessera::gpu {

#ifdef TESSERA_GPU_WGMMA

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// What barrier_init() wrote is seen by copies and by the other block, after cluster_sync().
__device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, and lets the round end only when so many bytes have come.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, unsigned phase) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni ended;\nbra.uni again;\nended:\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}
// In block `rank` of the cluster. It says that this thread has read, not that it has written: an
// arrival that released writes to the cluster would wait for all of them, a microsecond.
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void bulk_copy(std::uint32_t to, const void* from, int bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// To the same place in both blocks of a cluster, whose barriers count the bytes each.
__device__ __forceinline__ void bulk_copy_both(std::uint32_t to, const void* from, int bytes,
                                               std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>(3))
      : "memory");
}

__device__ __forceinline__ int cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// A barrier in two halves: what lies between waits for nobody.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_await() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
// To the same place of block `rank`, which has begun and not ended.
__device__ __forceinline__ void store_in(int rank, float* at, float value) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.f32 [there], %2;\n}" ::"r"(
          static_cast<std::uint32_t>(__cvta_generic_to_shared(at))),
      "r"(rank), "f"(value)
      : "memory");
}
// What stands there, once cluster_sync() has come behind its store; that block must not end before.
__device__ __forceinline__ float load_in(int rank, const float* at) {
  float value;
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n}"
      : "=f"(value)
      : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(at))), "r"(rank)
      : "memory");
  return value;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

#endif

}  // namespace tessera::gpu
