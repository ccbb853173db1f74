// The warpgroup matrix instruction of Hopper: d += A B with A 64 x 16 halves in registers (each
// warp 16 rows, fragments as in multiply_f16), B 16 x kColumns in shared memory, [column][64
// halves] rows of 128 bytes in the 128-byte swizzle. The accumulator's d[4 * j + i] is that of
// multiply_f16 for the columns 8j..8j+7.
#pragma once

#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {

// The instruction is there in code for sm_90a alone.
#if defined(TESSERA_GPU_SM90) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TESSERA_GPU_WGMMA 1
#endif

// Where a tile of B begins: 8-row groups 1024 bytes apart, 128-byte swizzle.
__device__ __forceinline__ std::uint64_t swizzled_tile(std::uint32_t shared_address) {
  return static_cast<std::uint64_t>((shared_address & 0x3ffff) >> 4) | std::uint64_t{1} << 16 |
         std::uint64_t{64} << 32 | std::uint64_t{1} << 62;
}

__device__ __forceinline__ void group_fence() {
#ifdef TESSERA_GPU_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void group_commit() {
#ifdef TESSERA_GPU_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most kPending committed groups are under way.
template <int kPending>
__device__ __forceinline__ void group_wait() {
#ifdef TESSERA_GPU_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
// Keeps the compiler from reading sums ahead of the wait for them.
template <int kColumns>
__device__ __forceinline__ void group_results(float* d) {
#ifdef TESSERA_GPU_WGMMA
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

template <int kColumns>
__device__ __forceinline__ void group_multiply(float* d, const std::uint32_t (&a)[4],
                                               std::uint64_t b);

template <>
__device__ __forceinline__ void group_multiply<32>(float* d, const std::uint32_t (&a)[4],
                                                   std::uint64_t b) {
#ifdef TESSERA_GPU_WGMMA
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
      "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

template <>
__device__ __forceinline__ void group_multiply<64>(float* d, const std::uint32_t (&a)[4],
                                                   std::uint64_t b) {
#ifdef TESSERA_GPU_WGMMA
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

template <>
__device__ __forceinline__ void group_multiply<128>(float* d, const std::uint32_t (&a)[4],
                                                    std::uint64_t b) {
#ifdef TESSERA_GPU_WGMMA
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

}  // namespace tessera::gpu
