// Scalar conversions between f32 and the two 16-bit float formats, exact for every input:
// subnormals, infinities and signed zeros included. Narrowing rounds to nearest, ties to even; a
// NaN stays a NaN.
//
//   std::uint16_t bits = float_to_half(1.0f);  // 0x3c00
//   float one = half_to_float(bits);
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace tessera {

inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x0400u) {
    // 0.5 + m * 2^-24 is exact, and so is the way back; no f32 subnormal is touched, so this holds
    // when the thread flushes them to zero.
    const float scaled = std::bit_cast<float>(0x3f000000u | magnitude) - 0.5f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: keep the top of the payload, and keep it a NaN
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    return static_cast<std::uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < 0x38800000u) {
    // Below the smallest normal: adding 0.5 leaves the multiple of 2^-24 in the low mantissa bits,
    // rounded by the hardware.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + odd;
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  const std::uint32_t odd = (bits >> 16) & 1u;
  return static_cast<std::uint16_t>((bits + 0x7fffu + odd) >> 16);
}

// Loads and stores at any address.
inline std::uint16_t load_u16(const std::byte* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline void store_u16(std::byte* to, std::uint16_t value) {
  std::memcpy(to, &value, sizeof(value));
}
inline float load_half(const std::byte* from) {
  return half_to_float(load_u16(from));
}
inline void store_half(std::byte* to, float value) {
  store_u16(to, float_to_half(value));
}

}  // namespace tessera
