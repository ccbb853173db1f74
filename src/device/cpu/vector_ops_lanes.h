// f32 lanes of the instruction set that the including file is compiled for, and the elementary
// functions on them. Only kernel files include this (x_portable.cc, x_avx2.cc, x_avx512.cc):
// everything has internal linkage, so no code for a newer instruction set can leak into a program
// that runs on an older one. Those files use no inline function or template from elsewhere.
//
// fma() fuses where the instruction set can. min and max return the second argument when the first
// is NaN.
#pragma once

#include <cstdint>

#if defined(__AVX2__) || defined(__AVX512F__)
#pragma GCC diagnostic push
#ifndef __clang__
// g++ 12's own header leaves a don't-care operand unset in _mm512_max_ps and others.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#define LANES_INLINE static inline __attribute__((always_inline, unused))

namespace tessera::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float F32 __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t I32 __attribute__((vector_size(4 * kLanes)));

LANES_INLINE F32 load(const float* from) {
  F32 value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
LANES_INLINE void store(float* to, F32 value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
LANES_INLINE F32 splat(float value) {
  return value - F32{};
}
LANES_INLINE I32 splat_int(std::int32_t value) {
  return value - I32{};
}
LANES_INLINE F32 as_float(I32 bits) {
  return reinterpret_cast<F32>(bits);
}
LANES_INLINE I32 as_int(F32 value) {
  return reinterpret_cast<I32>(value);
}

// Doubles, half as many lanes of twice the width; from and to floats with rounding to nearest.
constexpr int kWideLanes = kLanes / 2;
typedef double F64 __attribute__((vector_size(8 * kWideLanes)));
typedef float F32Half __attribute__((vector_size(4 * kWideLanes)));

LANES_INLINE F64 load_wide(const double* from) {
  F64 value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
LANES_INLINE F64 load_wide(const float* from) {
#if defined(__AVX512F__)  // g++ 12 makes two conversions of the plain one
  return _mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif defined(__AVX2__)
  return _mm256_cvtps_pd(_mm_loadu_ps(from));
#else
  F32Half value;
  __builtin_memcpy(&value, from, sizeof(value));
  return __builtin_convertvector(value, F64);
#endif
}
LANES_INLINE void store_wide(double* to, F64 value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
LANES_INLINE void store_wide(float* to, F64 value) {
  const F32Half half = __builtin_convertvector(value, F32Half);
  __builtin_memcpy(to, &half, sizeof(half));
}

// The first `count` < kLanes elements; the others are zero, or stay as they are in memory.
LANES_INLINE F32 load_part(const float* from, std::int64_t count) {
  float lanes[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[i];
  return load(lanes);
}
LANES_INLINE void store_part(float* to, F32 value, std::int64_t count) {
  float lanes[kLanes];
  store(lanes, value);
  for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}

#if defined(__AVX512F__)
LANES_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return _mm512_fmadd_ps(a, b, c);
}
LANES_INLINE F32 min(F32 a, F32 b) {
  return _mm512_min_ps(a, b);
}
LANES_INLINE F32 max(F32 a, F32 b) {
  return _mm512_max_ps(a, b);
}
LANES_INLINE F32 load_half_lanes(const std::uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
LANES_INLINE F32 load_int8_lanes(const std::int8_t* from) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
#elif defined(__AVX2__)
LANES_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return _mm256_fmadd_ps(a, b, c);
}
LANES_INLINE F32 min(F32 a, F32 b) {
  return _mm256_min_ps(a, b);
}
LANES_INLINE F32 max(F32 a, F32 b) {
  return _mm256_max_ps(a, b);
}
LANES_INLINE F32 load_half_lanes(const std::uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
LANES_INLINE F32 load_int8_lanes(const std::int8_t* from) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
#else
LANES_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return a * b + c;
}
LANES_INLINE F32 min(F32 a, F32 b) {
  return a < b ? a : b;
}
LANES_INLINE F32 max(F32 a, F32 b) {
  return a > b ? a : b;
}
// Four 16-bit or 8-bit integers with sign, widened through the top of each lane: compilers turn a
// plain conversion of so short a vector into scalar code.
typedef std::int16_t S16 __attribute__((vector_size(16)));
typedef std::int8_t S8 __attribute__((vector_size(16)));
LANES_INLINE I32 load_int16_lanes(const std::uint16_t* from) {
  S16 raw = {};
  __builtin_memcpy(&raw, from, 2 * kLanes);
  return reinterpret_cast<I32>(__builtin_shufflevector(S16{}, raw, 0, 8, 1, 9, 2, 10, 3, 11)) >> 16;
}
LANES_INLINE F32 load_half_lanes(const std::uint16_t* from) {
  const I32 bits = load_int16_lanes(from);
  const I32 magnitude = bits & 0x7fff;
  // Times 2^112 rebiases the exponent, of subnormals too; what was infinite or NaN gets its own.
  const I32 value = as_int(as_float(magnitude << 13) * 0x1p112f);
  const I32 special = (magnitude >= 0x7c00) & 0x7f800000;
  return as_float(value | special | (bits & INT32_MIN));
}
LANES_INLINE F32 load_int8_lanes(const std::int8_t* from) {
  S8 raw = {};
  __builtin_memcpy(&raw, from, kLanes);
  const S16 pairs = reinterpret_cast<S16>(
      __builtin_shufflevector(S8{}, raw, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  const S16 wide = __builtin_shufflevector(S16{}, pairs, 0, 8, 1, 9, 2, 10, 3, 11);
  return __builtin_convertvector(reinterpret_cast<I32>(wide) >> 24, F32);
}
#endif

LANES_INLINE F32 load_half_splat(const std::uint16_t* from) {
#if defined(__AVX2__)
  return splat(_cvtsh_ss(*from));
#else
  const std::uint16_t copies[kLanes] = {*from, *from, *from, *from};
  return load_half_lanes(copies);
#endif
}

// Always the same tree over the lanes.
LANES_INLINE float sum_lanes(F32 value) {
  float lanes[kLanes];
  store(lanes, value);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}
LANES_INLINE float max_lanes(F32 value) {
  float lanes[kLanes];
  store(lanes, value);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    }
  }
  return lanes[0];
}

// e^x: x = n ln2 + r, polynomial on |r| <= ln2 / 2 (coefficients: Cephes expf), 2^n applied in two
// halves so that subnormal results round and overflow becomes infinity. exp(0) is exactly 1.
LANES_INLINE F32 exp_lanes(F32 x) {
  x = min(splat(89.0f), max(splat(-105.0f), x));
  const F32 shifter = splat(12582912.0f);  // 1.5 * 2^23
  const F32 shifted = fma(x, splat(1.44269504088896341f), shifter);
  const I32 n = as_int(shifted) - as_int(shifter);
  const F32 whole = shifted - shifter;
  F32 r = fma(whole, splat(-0.693359375f), x);
  r = fma(whole, splat(2.12194440e-4f), r);
  F32 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p * r, r, r) + 1.0f;
  const I32 first = n >> 1;
  const I32 second = n - first;
  return p * as_float((first + 127) << 23) * as_float((second + 127) << 23);
}

LANES_INLINE F32 sigmoid_lanes(F32 x) {
  return 1.0f / (1.0f + exp_lanes(-x));
}
LANES_INLINE F32 silu_lanes(F32 x) {
  return x / (1.0f + exp_lanes(-x));
}

// tanh: odd polynomial below 0.625 (Cephes tanhf), 1 - 2 / (e^2x + 1) above.
LANES_INLINE F32 tanh_lanes(F32 x) {
  const I32 sign = as_int(x) & splat_int(INT32_MIN);
  const F32 a = as_float(as_int(x) ^ sign);
  const F32 z = x * x;
  F32 p = splat(-5.70498872745e-3f);
  p = fma(p, z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  const F32 small = fma(p * z, x, x);
  const F32 large = 1.0f - 2.0f / (exp_lanes(a + a) + 1.0f);
  return a < splat(0.625f) ? small : as_float(as_int(large) | sign);
}

// ln x for normal x > 0 (Cephes logf).
LANES_INLINE F32 log_lanes(F32 x) {
  const I32 bits = as_int(x);
  I32 exponent = (bits >> 23) - 126;
  F32 m = as_float((bits & 0x007fffff) | 0x3f000000);  // [0.5, 1)
  const I32 low = m < splat(0.707106781186547524f);
  exponent += low;  // a true lane is -1
  m = (low ? m + m : m) - 1.0f;
  const F32 z = m * m;
  F32 p = splat(7.0376836292e-2f);
  p = fma(p, m, splat(-1.1514610310e-1f));
  p = fma(p, m, splat(1.1676998740e-1f));
  p = fma(p, m, splat(-1.2420140846e-1f));
  p = fma(p, m, splat(1.4249322787e-1f));
  p = fma(p, m, splat(-1.6668057665e-1f));
  p = fma(p, m, splat(2.0000714765e-1f));
  p = fma(p, m, splat(-2.4999993993e-1f));
  p = fma(p, m, splat(3.3333331174e-1f));
  const F32 e = __builtin_convertvector(exponent, F32);
  F32 y = p * m * z;
  y = fma(e, splat(-2.12194440e-4f), y);
  y = fma(z, splat(-0.5f), y);
  return fma(e, splat(0.693359375f), m + y);
}

// ln(1 + e^x), by log1p: the rounding of 1 + u is given back as a first-order term.
LANES_INLINE F32 softplus_lanes(F32 x) {
  const F32 u = exp_lanes(min(x, splat(20.0f)));
  const F32 y = 1.0f + u;
  const F32 soft = log_lanes(y) + (u - (y - 1.0f)) / y;
  return x > splat(20.0f) ? x : soft;
}

// x * sigmoid(2z) = x/2 (1 + tanh z), z = sqrt(2/pi) (x + 0.044715 x^3), without the cancellation.
LANES_INLINE F32 gelu_tanh_lanes(F32 x) {
  const F32 z2 = 1.5957691216f * fma(0.044715f * x * x, x, x);
  return x / (1.0f + exp_lanes(-z2));
}

}  // namespace
}  // namespace tessera::cpu
