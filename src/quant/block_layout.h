// The bytes of each block format, as structs. Every member is made of bytes, so a struct has no
// padding and no alignment and can be copied from any address of a file.
//
//   BlockQ4_K block;
//   std::memcpy(&block, src, sizeof(block));
//   float d = block.d.get();
//
// What the fields mean is said once, in the decode() of each family (plain.cc, legacy.cc,
// k_affine.cc, k_symmetric.cc, codebook.cc).
#pragma once

#include <array>
#include <cstdint>

#include "quant/half.h"

namespace tessera {

struct HalfBytes {
  std::uint8_t low, high;
  float get() const { return half_to_float(static_cast<std::uint16_t>(low | (high << 8))); }
  void set_bits(std::uint16_t bits) {
    low = static_cast<std::uint8_t>(bits & 0xff);
    high = static_cast<std::uint8_t>(bits >> 8);
  }
};

struct BlockF32 {
  std::array<std::uint8_t, 4> bits;
};
struct BlockF16 {
  HalfBytes value;
};
struct BlockBF16 {
  HalfBytes value;
};

struct BlockQ4_0 {
  HalfBytes d;
  std::array<std::uint8_t, 16> q;
};
struct BlockQ4_1 {
  HalfBytes d, m;
  std::array<std::uint8_t, 16> q;
};
struct BlockQ5_0 {
  HalfBytes d;
  std::array<std::uint8_t, 4> qh;
  std::array<std::uint8_t, 16> q;
};
struct BlockQ5_1 {
  HalfBytes d, m;
  std::array<std::uint8_t, 4> qh;
  std::array<std::uint8_t, 16> q;
};
struct BlockQ8_0 {
  HalfBytes d;
  std::array<std::int8_t, 32> q;
};

struct BlockQ2_K {
  std::array<std::uint8_t, 16> scales;  // low nibble scale, high nibble min
  std::array<std::uint8_t, 64> q;
  HalfBytes d, dmin;
};
struct BlockQ3_K {
  std::array<std::uint8_t, 32> high;
  std::array<std::uint8_t, 64> q;
  std::array<std::uint8_t, 12> scales;
  HalfBytes d;
};
struct BlockQ4_K {
  HalfBytes d, dmin;
  std::array<std::uint8_t, 12> scales;
  std::array<std::uint8_t, 128> q;
};
struct BlockQ5_K {
  HalfBytes d, dmin;
  std::array<std::uint8_t, 12> scales;
  std::array<std::uint8_t, 32> high;
  std::array<std::uint8_t, 128> q;
};
struct BlockQ6_K {
  std::array<std::uint8_t, 128> low;
  std::array<std::uint8_t, 64> high;
  std::array<std::int8_t, 16> scales;
  HalfBytes d;
};

struct BlockIQ4_NL {
  HalfBytes d;
  std::array<std::uint8_t, 16> q;
};
struct BlockIQ4_XS {
  HalfBytes d;
  std::array<std::uint8_t, 2> scales_high;
  std::array<std::uint8_t, 4> scales_low;
  std::array<std::uint8_t, 128> q;
};
struct BlockMXFP4 {
  std::uint8_t e;
  std::array<std::uint8_t, 16> q;
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);
static_assert(sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136 && sizeof(BlockMXFP4) == 17);

// Eight 6-bit (scale, min) pairs in the 12 bytes of Q4_K and Q5_K.
struct ScalesAndMins {
  std::array<std::uint8_t, 8> scale, min;
};
inline ScalesAndMins unpack_scales(const std::array<std::uint8_t, 12>& s) {
  ScalesAndMins out;
  for (unsigned j = 0; j < 4; ++j) {
    out.scale[j] = s[j] & 63;
    out.min[j] = s[j + 4] & 63;
    out.scale[j + 4] = static_cast<std::uint8_t>((s[j + 8] & 15) | ((s[j] >> 6) << 4));
    out.min[j + 4] = static_cast<std::uint8_t>((s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4));
  }
  return out;
}
inline std::array<std::uint8_t, 12> pack_scales(const ScalesAndMins& in) {
  std::array<std::uint8_t, 12> s;
  for (unsigned j = 0; j < 4; ++j) {
    s[j] = static_cast<std::uint8_t>(in.scale[j] | ((in.scale[j + 4] >> 4) << 6));
    s[j + 4] = static_cast<std::uint8_t>(in.min[j] | ((in.min[j + 4] >> 4) << 6));
    s[j + 8] = static_cast<std::uint8_t>((in.scale[j + 4] & 15) | ((in.min[j + 4] & 15) << 4));
  }
  return s;
}

// The 16 levels of IQ4_NL and IQ4_XS, and those of E2M1 (MXFP4), the latter doubled.
inline constexpr std::array<std::int8_t, 16> kNonlinearLevels = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr std::array<std::int8_t, 16> kE2M1Levels = {0, 1,  2,  3,  4,  6,  8,  12,
                                                            0, -1, -2, -3, -4, -6, -8, -12};

// 2^(e - 128), the factor of kE2M1Levels in an MXFP4 block.
inline float mxfp4_scale(std::uint8_t e) {
  const std::uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23;
  return std::bit_cast<float>(bits);
}

}  // namespace tessera
