// Warp-level building blocks: shuffles, matrix instructions, chained launches, prefetches. Each has
// a plain version that means the same on any GPU. A warp is 32 lanes everywhere: on hardware with
// 64 the halves work side by side.
#pragma once

#include <cstdint>

#include "device/gpu/kernels/portable.h"

namespace tessera::gpu {

inline constexpr int kWarp = 32;

template <typename T>
__device__ __forceinline__ T shuffle(T value, int lane) {
#ifdef TESSERA_GPU_HIP
  return __shfl(value, lane, kWarp);
#else
  return __shfl_sync(0xffffffffu, value, lane);
#endif
}

template <typename T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
#ifdef TESSERA_GPU_HIP
  return __shfl_xor(value, mask, kWarp);
#else
  return __shfl_xor_sync(0xffffffffu, value, mask);
#endif
}

// 1 / sqrt(x), as the hardware has it: within two units in the last place. One function for all
// kernels, whose rows are to have the same bits. Norms are waited for: a root and a quotient that
// are rounded rightly cost a run of 40 layers 10 to 20 us (docs/gpu-runs.md).
__device__ __forceinline__ float inverse_root(float x) {
  return rsqrtf(x);
}

// Every lane gets the sum; the order is that of a butterfly.
template <int kLanes = kWarp>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}
// warp_sum of kN values at once, kN a power of two: lane l gets that of value l / (32 / kN). The
// same additions, but a lane takes part in its own only.
template <int kN>
__device__ __forceinline__ float spread_sums(float (&value)[kN], int lane) {
  int mask = kWarp / 2;
#pragma unroll
  for (int n = kN / 2; n > 0; n /= 2, mask /= 2) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float given = upper ? value[i] : value[i + n];
      value[i] = (upper ? value[i + n] : value[i]) + shuffle_xor(given, mask);
    }
  }
#pragma unroll
  for (; mask > 0; mask /= 2) value[0] += shuffle_xor(value[0], mask);
  return value[0];
}
template <int kLanes = kWarp>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) value = fmaxf(value, shuffle_xor(value, mask));
  return value;
}

// Waits until the kernels before this one on the stream are complete and their writes visible.
__device__ __forceinline__ void chain_wait() {
#ifdef TESSERA_GPU_SM90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel's blocks start; they wait in chain_wait() for this kernel's end.
__device__ __forceinline__ void chain_trigger() {
#ifdef TESSERA_GPU_SM90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void prefetch_line(const void* at) {
#ifdef TESSERA_GPU_PTX
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

// Fetches `bytes` from `at` into L2 with all threads of the block.
__device__ __forceinline__ void prefetch_block(const void* at, int bytes) {
  for (int i = static_cast<int>(threadIdx.x) * 128; i < bytes;
       i += static_cast<int>(blockDim.x) * 128)
    prefetch_line(static_cast<const char*>(at) + i);
}

// Reads of weights: once, past L1.
__device__ __forceinline__ uint4 load_stream(const uint4* at) {
#ifdef TESSERA_GPU_PTX
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
#else
  return *at;
#endif
}
__device__ __forceinline__ uint2 load_stream(const uint2* at) {
#ifdef TESSERA_GPU_PTX
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(at));
  return v;
#else
  return *at;
#endif
}
__device__ __forceinline__ std::uint32_t load_stream(const std::uint32_t* at) {
#ifdef TESSERA_GPU_PTX
  std::uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
#else
  return *at;
#endif
}

// To the GPU's memory as one store: of a struct that it has taken apart the compiler makes four.
__device__ __forceinline__ void store_sixteen(void* at, uint4 v) {
#ifdef TESSERA_GPU_PTX
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
#else
  *static_cast<uint4*>(at) = v;
#endif
}

// Bytes of (a, b) chosen by the nibbles of `select`, as PRMT without sign replication.
__device__ __forceinline__ std::uint32_t permute(std::uint32_t a, std::uint32_t b,
                                                 std::uint32_t select) {
#ifdef TESSERA_GPU_HIP
  std::uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t at = (select >> (4 * i)) & 7;
    out |= ((at < 4 ? a >> (8 * at) : b >> (8 * (at - 4))) & 255u) << (8 * i);
  }
  return out;
#else
  return __byte_perm(a, b, select);
#endif
}

__device__ __forceinline__ int dot4(std::uint32_t a, std::uint32_t b, int sum) {
#ifdef TESSERA_GPU_HIP
  for (int i = 0; i < 4; ++i)
    sum += static_cast<int>(static_cast<std::int8_t>(a >> (8 * i))) *
           static_cast<int>(static_cast<std::int8_t>(b >> (8 * i)));
  return sum;
#else
  return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
#endif
}

#ifndef TESSERA_GPU_PTX
// The same with unsigned bytes in `a`.
__device__ __forceinline__ int dot4_unsigned(std::uint32_t a, std::uint32_t b, int sum) {
  for (int i = 0; i < 4; ++i)
    sum += static_cast<int>((a >> (8 * i)) & 255u) *
           static_cast<int>(static_cast<std::int8_t>(b >> (8 * i)));
  return sum;
}
#endif

// --- Matrix instructions. Lane l: g = l / 4, t = l % 4. ---

#ifndef TESSERA_GPU_PTX
// What every lane of the warp holds of an operand; all lanes read at the same time.
template <int kN>
class Operand {
 public:
#ifdef TESSERA_GPU_EMULATED
  explicit Operand(const std::uint32_t (&own)[kN])
      : all_(static_cast<const std::uint32_t*>(emulated::gather(own, sizeof(own)))) {}
  std::uint32_t of(int lane, int i) const {
    return all_[lane * kN + i];
  }

 private:
  const std::uint32_t* all_;
#else
  __device__ __forceinline__ explicit Operand(const std::uint32_t (&own)[kN]) : own_(own) {}
  __device__ __forceinline__ std::uint32_t of(int lane, int i) const {
    return shuffle(own_[i], lane);
  }

 private:
  const std::uint32_t (&own_)[kN];
#endif
};
#endif

// d[0,1] = row g, columns 2t, 2t + 1; d[2,3] = row g + 8. a: signed bytes, a[0] row g, a[1] row
// g + 8, k = 4t..4t+3; a[2], a[3] k = 16+4t... b: column g, the same k. d starts from `start`.
__device__ __forceinline__ void multiply_s8_k32(int (&d)[4], const std::uint32_t (&a)[4],
                                                const std::uint32_t (&b)[2], int start) {
#ifdef TESSERA_GPU_PTX
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
#else
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const Operand<4> rows(a);
  const Operand<2> columns(b);
  for (int& value : d) value = start;
  for (int k = 0; k < 4; ++k)
    for (int part = 0; part < 2; ++part) {
      const std::uint32_t low = rows.of(4 * g + k, 2 * part);
      const std::uint32_t high = rows.of(4 * g + k, 2 * part + 1);
      for (int column = 0; column < 2; ++column) {
        const std::uint32_t x = columns.of(4 * (2 * t + column) + k, part);
        d[column] = dot4(low, x, d[column]);
        d[2 + column] = dot4(high, x, d[2 + column]);
      }
    }
#endif
}

// The same over 16 columns: a0 row g, a1 row g + 8, k = 4t..4t+3.
__device__ __forceinline__ void multiply_s8_k16(int (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                std::uint32_t b, int start) {
#ifdef TESSERA_GPU_PTX
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(start));
#else
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const std::uint32_t own[3] = {a0, a1, b};
  const Operand<3> all(own);
  for (int& value : d) value = start;
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t low = all.of(4 * g + k, 0), high = all.of(4 * g + k, 1);
    for (int column = 0; column < 2; ++column) {
      const std::uint32_t x = all.of(4 * (2 * t + column) + k, 2);
      d[column] = dot4(low, x, d[column]);
      d[2 + column] = dot4(high, x, d[2 + column]);
    }
  }
#endif
}

// d += A B over unsigned bytes of A and signed bytes of B, laid out as above: 16 columns ...
__device__ __forceinline__ void add_u8_k16(int (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                           std::uint32_t b) {
#ifdef TESSERA_GPU_PTX
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
#else
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const std::uint32_t own[3] = {a0, a1, b};
  const Operand<3> all(own);
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t low = all.of(4 * g + k, 0), high = all.of(4 * g + k, 1);
    for (int column = 0; column < 2; ++column) {
      const std::uint32_t x = all.of(4 * (2 * t + column) + k, 2);
      d[column] = dot4_unsigned(low, x, d[column]);
      d[2 + column] = dot4_unsigned(high, x, d[2 + column]);
    }
  }
#endif
}

// ... and 32.
__device__ __forceinline__ void add_u8_k32(int (&d)[4], const std::uint32_t (&a)[4],
                                           std::uint32_t b0, std::uint32_t b1) {
#ifdef TESSERA_GPU_PTX
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  add_u8_k16(d, a[0], a[1], b0);
  add_u8_k16(d, a[2], a[3], b1);
#endif
}

// The same, with d from 0 on.
__device__ __forceinline__ void multiply_u8_k32(int (&d)[4], const std::uint32_t (&a)[4],
                                                uint2 b) {
#ifdef TESSERA_GPU_PTX
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(0));
#else
  for (int& value : d) value = 0;
  add_u8_k32(d, a, b.x, b.y);
#endif
}

__device__ __forceinline__ __half2 as_half2(std::uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}
__device__ __forceinline__ std::uint32_t as_bits(__half2 value) {
  return *reinterpret_cast<std::uint32_t*>(&value);
}
__device__ __forceinline__ __half to_half(float x) {
  return __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
}
__device__ __forceinline__ std::uint32_t two_halves(float a, float b) {
  return as_bits(__halves2half2(to_half(a), to_half(b)));
}

// d += A B in f32: A 16 x 16 halves (a[0] row g k 2t,2t+1; a[1] row g + 8; a[2], a[3] k + 8), B 16
// x 8 (b[0] column g k 2t,2t+1; b[1] k + 8).
__device__ __forceinline__ void multiply_f16(float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
#ifdef TESSERA_GPU_PTX
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const std::uint32_t b[2] = {b0, b1};
  const Operand<4> rows(a);
  const Operand<2> columns(b);
  for (int k = 0; k < 4; ++k)
    for (int part = 0; part < 2; ++part) {
      const float2 low = __half22float2(as_half2(rows.of(4 * g + k, 2 * part)));
      const float2 high = __half22float2(as_half2(rows.of(4 * g + k, 2 * part + 1)));
      for (int column = 0; column < 2; ++column) {
        const float2 x = __half22float2(as_half2(columns.of(4 * (2 * t + column) + k, part)));
        // As fmaf: a product of halves is exact.
        d[column] = low.x * x.x + (low.y * x.y + d[column]);
        d[2 + column] = high.x * x.x + (high.y * x.y + d[2 + column]);
      }
    }
#endif
}

#ifdef TESSERA_GPU_PTX
// An f32 value in two parts of the 11 bits that the tensor units take (TF32): high + low, but for
// 2^-22 of it. Of an infinity the low part is NaN, and so is what it is multiplied to.
struct Split {
  std::uint32_t high, low;
};
__device__ __forceinline__ Split split(float x) {
  Split parts;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(parts.high) : "f"(x));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(parts.low) : "f"(x - __uint_as_float(parts.high)));
  return parts;
}

__device__ __forceinline__ void multiply_tf32(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                              std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                              std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// d += A B of f32 values, without the product of both low parts: A 16 x 8 (a[0] row g k t; a[1] row
// g + 8; a[2], a[3] k + 4), B 8 x 8 (b[0] column g k t; b[1] k + 4).
__device__ __forceinline__ void multiply_split(float (&d)[4], const Split (&a)[4],
                                               const Split (&b)[2]) {
  multiply_tf32(d, a[0].low, a[1].low, a[2].low, a[3].low, b[0].high, b[1].high);
  multiply_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b[0].low, b[1].low);
  multiply_tf32(d, a[0].high, a[1].high, a[2].high, a[3].high, b[0].high, b[1].high);
}
#endif

}  // namespace tessera::gpu
