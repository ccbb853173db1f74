// The decoders against the published formulas, written here element by element over raw bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "quant/block_format.h"

namespace tessera {
namespace {

using Bytes = std::vector<std::uint8_t>;

double f16(const Bytes& b, std::size_t at) {
  const int bits = b[at] | (b[at + 1] << 8), exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

int nibble(std::uint8_t byte, bool high) {
  return high ? byte >> 4 : byte & 15;
}

// Half-split nibbles of 32 elements whose bytes start at `at`.
int half_split(const Bytes& b, std::size_t at, std::size_t i) {
  return nibble(b[at + i % 16], i >= 16);
}

int fifth_bit(const Bytes& b, std::size_t at, std::size_t i) {
  std::uint32_t qh = 0;
  for (std::size_t k = 0; k < 4; ++k) qh |= std::uint32_t{b[at + k]} << (8 * k);
  return static_cast<int>((qh >> i) & 1) << 4;
}

struct Pair {
  int scale, min;
};
Pair scale_min(const Bytes& b, std::size_t at, std::size_t j) {
  const auto s = [&](std::size_t k) { return int{b[at + k]}; };
  if (j < 4) return {s(j) & 63, s(j + 4) & 63};
  return {(s(j + 4) & 15) | ((s(j - 4) >> 6) << 4), (s(j + 4) >> 4) | ((s(j) >> 6) << 4)};
}

double q2_k(const Bytes& b, std::size_t i) {
  const std::size_t h = i / 128, j = i % 128 / 32, l = i % 32;
  const int n = (b[16 + 32 * h + l] >> (2 * j)) & 3, s = b[8 * h + 2 * j + (l >= 16)];
  return f16(b, 80) * (s & 15) * n - f16(b, 82) * (s >> 4);
}

double q3_k(const Bytes& b, std::size_t i) {
  const std::size_t h = i / 128, j = i % 128 / 32, l = i % 32, k = 8 * h + 2 * j + (l >= 16);
  const std::size_t sc = 96;
  const int low4 = k < 8 ? b[sc + k] & 15 : b[sc + k - 8] >> 4;
  const int high2 = (b[sc + 8 + (k & 3)] >> (2 * (k >> 2))) & 3;
  const int n = ((b[32 + 32 * h + l] >> (2 * j)) & 3) - ((b[l] >> (4 * h + j)) & 1 ? 0 : 4);
  return f16(b, 108) * ((low4 | (high2 << 4)) - 32) * n;
}

double q4_k(const Bytes& b, std::size_t i) {
  const std::size_t g = i / 64, l = i % 32;
  const bool high = i % 64 >= 32;
  const Pair p = scale_min(b, 4, 2 * g + high);
  return f16(b, 0) * p.scale * nibble(b[16 + 32 * g + l], high) - f16(b, 2) * p.min;
}

double q5_k(const Bytes& b, std::size_t i) {
  const std::size_t g = i / 64, l = i % 32;
  const bool high = i % 64 >= 32;
  const Pair p = scale_min(b, 4, 2 * g + high);
  const int n = nibble(b[48 + 32 * g + l], high) + 16 * ((b[16 + l] >> (2 * g + high)) & 1);
  return f16(b, 0) * p.scale * n - f16(b, 2) * p.min;
}

double q6_k(const Bytes& b, std::size_t i) {
  const std::size_t h = i / 128, quarter = i % 128 / 32, l = i % 32;
  const int e = b[128 + 32 * h + l], first = b[64 * h + l], second = b[64 * h + 32 + l];
  int n = 0;
  if (quarter == 0) n = (first & 15) | ((e & 3) << 4);
  if (quarter == 1) n = (second & 15) | (((e >> 2) & 3) << 4);
  if (quarter == 2) n = (first >> 4) | (((e >> 4) & 3) << 4);
  if (quarter == 3) n = (second >> 4) | ((e >> 6) << 4);
  const auto scale = static_cast<std::int8_t>(b[192 + 8 * h + l / 16 + 2 * quarter]);
  return f16(b, 208) * scale * (n - 32);
}

constexpr int kNl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

double iq4_xs(const Bytes& b, std::size_t i) {
  const std::size_t sub = i / 32;
  const int sh = b[2] | (b[3] << 8);
  const int low = (b[4 + sub / 2] >> (4 * (sub & 1))) & 15;
  const int s = (low | (((sh >> (2 * sub)) & 3) << 4)) - 32;
  return f16(b, 0) * s * kNl[half_split(b, 8 + 16 * sub, i % 32)];
}

double mxfp4(const Bytes& b, std::size_t i) {
  constexpr double kE2M1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int n = half_split(b, 1, i);
  return std::ldexp(kE2M1[n & 7], b[0] - 127) * (n & 8 ? -1 : 1);
}

double formula(BlockType type, const Bytes& b, std::size_t i) {
  switch (type) {
    case BlockType::F32: {
      float v;
      std::memcpy(&v, b.data(), 4);
      return v;
    }
    case BlockType::F16:
      return f16(b, 0);
    case BlockType::BF16: {
      const std::uint32_t bits = static_cast<std::uint32_t>(b[0] | (b[1] << 8)) << 16;
      float v;
      std::memcpy(&v, &bits, 4);
      return v;
    }
    case BlockType::Q4_0:
      return f16(b, 0) * (half_split(b, 2, i) - 8);
    case BlockType::Q4_1:
      return f16(b, 0) * half_split(b, 4, i) + f16(b, 2);
    case BlockType::Q5_0:
      return f16(b, 0) * ((half_split(b, 6, i) | fifth_bit(b, 2, i)) - 16);
    case BlockType::Q5_1:
      return f16(b, 0) * (half_split(b, 8, i) | fifth_bit(b, 4, i)) + f16(b, 2);
    case BlockType::Q8_0:
      return f16(b, 0) * static_cast<std::int8_t>(b[2 + i]);
    case BlockType::Q2_K:
      return q2_k(b, i);
    case BlockType::Q3_K:
      return q3_k(b, i);
    case BlockType::Q4_K:
      return q4_k(b, i);
    case BlockType::Q5_K:
      return q5_k(b, i);
    case BlockType::Q6_K:
      return q6_k(b, i);
    case BlockType::IQ4_NL:
      return f16(b, 0) * kNl[half_split(b, 2, i)];
    case BlockType::IQ4_XS:
      return iq4_xs(b, i);
    case BlockType::MXFP4:
      return mxfp4(b, i);
  }
  return 0;
}

// Where the f16 fields are, so that random bytes can be kept finite.
std::vector<std::size_t> half_fields(BlockType type) {
  switch (type) {
    case BlockType::F32:
    case BlockType::BF16:
    case BlockType::MXFP4:
      return {};
    case BlockType::Q4_1:
    case BlockType::Q5_1:
    case BlockType::Q4_K:
    case BlockType::Q5_K:
      return {0, 2};
    case BlockType::Q2_K:
      return {80, 82};
    case BlockType::Q3_K:
      return {108};
    case BlockType::Q6_K:
      return {208};
    default:
      return {0};
  }
}

void expect_formula(BlockType type, const Bytes& block) {
  const BlockFormat& format = block_format(type);
  std::vector<float> got(static_cast<std::size_t>(format.elems));
  dequantize_row(type, reinterpret_cast<const std::byte*>(block.data()), format.elems, got.data());
  for (std::size_t i = 0; i < got.size(); ++i) {
    double want = formula(type, block, i);
    if (std::abs(want) > std::numeric_limits<float>::max()) want = std::copysign(INFINITY, want);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got[i])) << format.name << " element " << i;
    } else if (std::isinf(want)) {
      EXPECT_EQ(got[i], want) << format.name << " element " << i;
    } else {
      // A few roundings to f32 of terms that are at most 4096 times a scale.
      double size = std::abs(want);
      for (const std::size_t at : half_fields(type)) size += 4096 * std::abs(f16(block, at));
      EXPECT_NEAR(got[i], want, 1.5e-7 * size + 1e-44) << format.name << " element " << i;
    }
  }
}

TEST(BlockFormula, RandomBlocks) {
  std::mt19937 rng(7);
  for (const BlockType type : all_block_types()) {
    const auto bytes = static_cast<std::size_t>(block_format(type).bytes);
    for (int round = 0; round < 300; ++round) {
      Bytes block(bytes);
      for (auto& byte : block) byte = static_cast<std::uint8_t>(rng());
      for (const std::size_t at : half_fields(type)) {
        if ((block[at + 1] & 0x7c) == 0x7c) block[at + 1] ^= 0x40;
      }
      expect_formula(type, block);
    }
  }
}

TEST(BlockFormula, AllOnesAndAllZeros) {
  for (const BlockType type : all_block_types()) {
    const auto bytes = static_cast<std::size_t>(block_format(type).bytes);
    expect_formula(type, Bytes(bytes, 0xff));
    expect_formula(type, Bytes(bytes, 0x00));
  }
}

TEST(BlockFormula, EveryMxfp4Exponent) {
  for (int e = 0; e < 256; ++e) {
    Bytes block(17, 0x7f);
    block[0] = static_cast<std::uint8_t>(e);
    std::vector<float> got(32);
    dequantize_row(BlockType::MXFP4, reinterpret_cast<const std::byte*>(block.data()), 32,
                   got.data());
    EXPECT_EQ(got[0], static_cast<float>(-std::ldexp(6.0, e - 127))) << e;
    EXPECT_EQ(got[31], static_cast<float>(std::ldexp(6.0, e - 127))) << e;
  }
}

}  // namespace
}  // namespace tessera
