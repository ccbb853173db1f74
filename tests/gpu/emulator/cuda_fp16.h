// Halves as CUDA spells them, over the engine's own conversions.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda_runtime.h"
#include "quant/half.h"

struct __half {
  std::uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half h) {
  return tessera::half_to_float(h.bits);
}
inline __half __float2half_rn(float f) {
  return {tessera::float_to_half(f)};
}
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline __half2 __halves2half2(__half x, __half y) {
  return {x, y};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __float2half2_rn(float f) {
  return __floats2half2_rn(f, f);
}
inline float2 __half22float2(__half2 h) {
  return {__half2float(h.x), __half2float(h.y)};
}
inline __half __low2half(__half2 h) {
  return h.x;
}
inline __half __high2half(__half2 h) {
  return h.y;
}
inline __half2 __lows2half2(__half2 a, __half2 b) {
  return {a.x, b.x};
}
inline __half2 __highs2half2(__half2 a, __half2 b) {
  return {a.y, b.y};
}
inline __half2 __hneg2(__half2 h) {
  const float2 u = __half22float2(h);
  return __floats2half2_rn(-u.x, -u.y);
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  const float2 u = __half22float2(a), v = __half22float2(b);
  return __floats2half2_rn(u.x * v.x, u.y * v.y);
}
inline __half2 __hsub2(__half2 a, __half2 b) {
  const float2 u = __half22float2(a), v = __half22float2(b);
  return __floats2half2_rn(u.x - v.x, u.y - v.y);
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const float2 u = __half22float2(a), v = __half22float2(b), w = __half22float2(c);
  return __floats2half2_rn(std::fma(u.x, v.x, w.x), std::fma(u.y, v.y, w.y));
}
