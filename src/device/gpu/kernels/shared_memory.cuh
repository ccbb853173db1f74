// Shared memory: copies into it that go on in the background, and operands of matrix products out
// of it.
//
//   copy_async(to, from, row < rows);     // 16 bytes; zeros where the row is not there
//   copy_commit();
//   copy_wait<1>();                       // all but the last group that was committed
//   __syncthreads();
//   load_rows(a, tile, stride);           // for multiply_f16 (warp.cuh)
//
// `stride` is in halves, a multiple of 8. Without PTX copies are done at once.
#pragma once

#include "device/gpu/kernels/warp.cuh"

namespace tessera::gpu {

#ifdef TESSERA_GPU_PTX
__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}
#else
__device__ __forceinline__ std::uint32_t shared_address(const void*) {
  return 0;
}
#endif

// 16 bytes from global to shared memory; zeros where `valid` is false.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
#ifdef TESSERA_GPU_PTX
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
#endif
}

// --- What a step reads or writes once, and L2 is to let go of first ---

// What createpolicy.fractional.L2::evict_first makes on Hopper. Elsewhere nothing is asked for.
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;
__device__ __forceinline__ void copy_async_once(void* to, const void* from) {
#ifdef TESSERA_GPU_WGMMA
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                   shared_address(to)),
               "l"(from), "l"(kEvictFirst)
               : "memory");
#else
  copy_async(to, from, true);
#endif
}
__device__ __forceinline__ void store_once(float* at, float4 v) {
#ifdef TESSERA_GPU_WGMMA
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(at), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w), "l"(kEvictFirst)
               : "memory");
#else
  *reinterpret_cast<float4*>(at) = v;
#endif
}

__device__ __forceinline__ void copy_commit() {
#ifdef TESSERA_GPU_PTX
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
#ifdef TESSERA_GPU_PTX
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

#ifndef TESSERA_GPU_PTX
// The row that a lane named.
__device__ __forceinline__ const __half2* matrix_row(const void* at, int lane) {
  return reinterpret_cast<const __half2*>(shuffle(reinterpret_cast<unsigned long long>(at), lane));
}
#endif

// Four matrices of 8 x 8 halves: lane l names row l % 8 of matrix l / 8 and gets of each matrix
// columns 2 (l % 4) and the next of row l / 4.
__device__ __forceinline__ void load_matrices(std::uint32_t (&out)[4], const void* at) {
#ifdef TESSERA_GPU_PTX
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(at))
               : "memory");
#else
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = 0; i < 4; ++i) out[i] = as_bits(matrix_row(at, 8 * i + lane / 4)[lane % 4]);
#endif
}
// Their transposes: of each matrix rows 2 (l % 4) and the next of column l / 4.
__device__ __forceinline__ void load_matrices_turned(std::uint32_t (&out)[4], const void* at) {
#ifdef TESSERA_GPU_PTX
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(at))
               : "memory");
#else
  const int lane = static_cast<int>(threadIdx.x) % kWarp, column = lane / 4;
  for (int i = 0; i < 4; ++i) {
    const int row = 8 * i + 2 * (lane % 4);
    const __half2 upper = matrix_row(at, row)[column / 2];
    const __half2 lower = matrix_row(at, row + 1)[column / 2];
    out[i] = as_bits(column % 2 ? __highs2half2(upper, lower) : __lows2half2(upper, lower));
  }
#endif
}

// 16 rows x 16 columns of a row-major matrix.
__device__ __forceinline__ void load_rows(std::uint32_t (&a)[4], const __half* at, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  load_matrices(a, at + lane % 16 * stride + lane / 16 * 8);
}

// The transpose of 16 rows (k) x 16 columns (m) as the left operand.
__device__ __forceinline__ void load_columns(std::uint32_t (&a)[4], const __half* at, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int k = lane % 8 + lane / 16 * 8, m = lane / 8 % 2 * 8;
  load_matrices_turned(a, at + k * stride + m);
}

// Right operands of two tiles of 8 columns: b[0], b[1] of the first, b[2], b[3] of the second.
// From a matrix that holds them row-major, 16 rows (k) x 16 columns (n).
__device__ __forceinline__ void load_right(std::uint32_t (&b)[4], const __half* at, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int k = lane % 8 + lane / 8 % 2 * 8, n = lane / 16 * 8;
  load_matrices_turned(b, at + k * stride + n);
}

// From a matrix whose rows are the columns (n): 16 rows (n) x 16 columns (k).
__device__ __forceinline__ void load_right_transposed(std::uint32_t (&b)[4], const __half* at,
                                                      int stride) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int n = lane % 8 + lane / 16 * 8, k = lane / 8 % 2 * 8;
  load_matrices(b, at + n * stride + k);
}

}  // namespace tessera::gpu
