// The warpgroup matrix instruction of Hopper: d += A B with A 64 x 16 halves in registers (each
// warp 16 rows, fragments as in multiply_f16) or in shared memory, B 16 x kColumns in shared
// memory. The accumulator's d[4 * j + i] is that of multiply_f16 for the columns 8j..8j+7.
//
// Operands in shared memory are rows of 64 halves, 128 bytes, in the 128-byte swizzle: piece p of
// row r, 16 bytes, stands at p ^ (r % 8), and tiles begin at multiples of 1024 bytes. A row is a
// row of A or a column of B with 64 values of k; of a turned B it is one value of k with 64
// columns.
#pragma once

#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {

// The instruction is there in code for sm_90a alone.
#if defined(TESSERA_GPU_SM90) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TESSERA_GPU_WGMMA 1
#endif

// Where a tile begins: 8-row groups 1024 bytes apart, 128-byte swizzle. 16 values of k are 32
// bytes, an offset of 2.
__device__ __forceinline__ std::uint64_t swizzled_tile(std::uint32_t shared_address) {
  return static_cast<std::uint64_t>((shared_address & 0x3ffff) >> 4) | std::uint64_t{1} << 16 |
         std::uint64_t{64} << 32 | std::uint64_t{1} << 62;
}
// Where a turned tile begins: the "leading" distance is that from 64 columns to the next 64, the
// "stride" that from 8 values of k to the next 8. 16 values of k are 2048 bytes, an offset of 128.
__device__ __forceinline__ std::uint64_t turned_tile(std::uint32_t shared_address, int apart) {
  constexpr int kGroup = 8 * 128;
  const int leading = apart, stride = kGroup;
  return static_cast<std::uint64_t>((shared_address & 0x3ffff) >> 4) |
         static_cast<std::uint64_t>(leading / 16) << 16 |
         static_cast<std::uint64_t>(stride / 16) << 32 | std::uint64_t{1} << 62;
}

// What this thread wrote to shared memory is there for products, and before what bulk copies bring.
__device__ __forceinline__ void async_fence() {
#ifdef TESSERA_GPU_WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
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
// Keeps the compiler from reading sums ahead of the wait for them, and from writing them behind the
// fence ahead of the next products: that must stand between for all four warps.
template <int kColumns>
__device__ __forceinline__ void group_results(float* d) {
#ifdef TESSERA_GPU_WGMMA
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

#ifdef TESSERA_GPU_WGMMA
// The sums of an instruction: their names in the text, and what they are bound to.
#define TESSERA_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TESSERA_NAMES_32 \
  TESSERA_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TESSERA_NAMES_48 \
  TESSERA_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TESSERA_NAMES_64                                             \
  TESSERA_NAMES_32                                                   \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TESSERA_NAMES_128                                                        \
  TESSERA_NAMES_64                                                               \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"             \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"             \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define TESSERA_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TESSERA_SUMS_16(d, i)                                               \
  TESSERA_SUMS_4(d, i), TESSERA_SUMS_4(d, i + 4), TESSERA_SUMS_4(d, i + 8), \
      TESSERA_SUMS_4(d, i + 12)
#define TESSERA_SUMS_32(d, i) TESSERA_SUMS_16(d, i), TESSERA_SUMS_16(d, i + 16)
#define TESSERA_SUMS_48(d, i) TESSERA_SUMS_32(d, i), TESSERA_SUMS_16(d, i + 32)
#define TESSERA_SUMS_64(d, i) TESSERA_SUMS_32(d, i), TESSERA_SUMS_32(d, i + 32)
#define TESSERA_SUMS_128(d, i) TESSERA_SUMS_64(d, i), TESSERA_SUMS_64(d, i + 64)

// `sums` is half the columns; `left`, `right` and `turned` name the operands that follow them.
#define TESSERA_GROUP_MULTIPLY(columns, sums, left, right, turned)                 \
  asm volatile(                                                                    \
      "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n" #columns                                 \
      "k16.f32.f16.f16 "                                                           \
      "{" TESSERA_NAMES_##sums "}, {" left "}, " right ", p, 1, 1, " turned ";\n}" \
      : TESSERA_SUMS_##sums(d, 0)                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTurned ? 1 : 0))
#define TESSERA_GROUP_MULTIPLY_SHARED(columns, sums, left, right, added)            \
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, " added                            \
               ", 0;\n"                                                             \
               "wgmma.mma_async.sync.aligned.m64n" #columns                         \
               "k16.f32.f16.f16 "                                                   \
               "{" TESSERA_NAMES_##sums "}, " left ", " right ", p, 1, 1, 0, 0;\n}" \
               : TESSERA_SUMS_##sums(d, 0)                                          \
               : "l"(a), "l"(b), "r"(add ? 1 : 0))
#endif

// A from registers.
template <int kColumns, bool kTurned = false>
__device__ __forceinline__ void group_multiply(float* d, const std::uint32_t (&a)[4],
                                               std::uint64_t b) {
#ifdef TESSERA_GPU_WGMMA
  static_assert(kColumns == 32 || kColumns == 64 || kColumns == 96 || kColumns == 128 ||
                kColumns == 256);
  if constexpr (kColumns == 32)
    TESSERA_GROUP_MULTIPLY(32, 16, "%16,%17,%18,%19", "%20", "%21");
  else if constexpr (kColumns == 64)
    TESSERA_GROUP_MULTIPLY(64, 32, "%32,%33,%34,%35", "%36", "%37");
  else if constexpr (kColumns == 96)
    TESSERA_GROUP_MULTIPLY(96, 48, "%48,%49,%50,%51", "%52", "%53");
  else if constexpr (kColumns == 128)
    TESSERA_GROUP_MULTIPLY(128, 64, "%64,%65,%66,%67", "%68", "%69");
  else
    TESSERA_GROUP_MULTIPLY(256, 128, "%128,%129,%130,%131", "%132", "%133");
#endif
}

// A from shared memory; without `add` d = A B.
template <int kColumns>
__device__ __forceinline__ void group_multiply_shared(float* d, std::uint64_t a, std::uint64_t b,
                                                      bool add) {
#ifdef TESSERA_GPU_WGMMA
  static_assert(kColumns == 64 || kColumns == 256);
  if constexpr (kColumns == 64)
    TESSERA_GROUP_MULTIPLY_SHARED(64, 32, "%32", "%33", "%34");
  else
    TESSERA_GROUP_MULTIPLY_SHARED(256, 128, "%128", "%129", "%130");
#endif
}

}  // namespace tessera::gpu
