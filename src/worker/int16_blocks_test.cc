#include "worker/int16_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tessera::worker {
namespace {

std::vector<float> there_and_back(const std::vector<float>& values) {
  std::vector<std::byte> bytes(int16_bytes(values.size()), std::byte{0xaa});
  pack_int16(values, bytes);
  std::vector<float> back(values.size(), std::numeric_limits<float>::quiet_NaN());
  unpack_int16(bytes, back);
  return back;
}

// What the header promises, in f64: the nearest multiple of the least power of two that fits.
float reference(double value, double most) {
  if (most == 0.0) return 0.0f;
  const double step = std::ldexp(1.0, std::max(std::ilogb(most) - 14, -126));
  return static_cast<float>(std::clamp(std::nearbyint(value / step), -32767.0, 32767.0) * step);
}

TEST(Int16Blocks, AreTheNearestOfSharedSteps) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const std::size_t size : {1u, 2u, 31u, 32u, 33u, 64u, 100u, 2048u}) {
    for (const int exponent : {0, -30, 40, 120, -120, -140}) {
      std::vector<float> values(size);
      for (float& value : values) value = std::ldexp(normal(random), exponent);
      const std::vector<float> back = there_and_back(values);
      for (std::size_t i = 0; i < size; ++i) {
        const std::size_t begin = i / kInt16Block * kInt16Block;
        double most = 0.0;
        for (std::size_t j = begin; j < std::min<std::size_t>(size, begin + kInt16Block); ++j)
          most = std::max(most, std::abs(double{values[j]}));
        ASSERT_EQ(back[i], reference(values[i], most)) << size << " " << exponent << " " << i;
      }
    }
  }
}

TEST(Int16Blocks, TheEndsOfTheRange) {
  const float most = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(there_and_back({0.0f, -0.0f}), (std::vector<float>{0.0f, 0.0f}));
  EXPECT_EQ(there_and_back({least, -least}), (std::vector<float>{0.0f, 0.0f}));
  const std::vector<float> back = there_and_back({most, -most, 1.0f});
  EXPECT_EQ(back, (std::vector<float>{std::ldexp(32767.0f, 113), -std::ldexp(32767.0f, 113), 0}));
  EXPECT_TRUE(there_and_back({}).empty());
}

// No value of the block can be told from the ones that are lost; other blocks stay as they are.
TEST(Int16Blocks, WhatIsNotFiniteIsItsBlocks) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(70, 1.0f);
    values[40] = bad;
    const std::vector<float> back = there_and_back(values);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(std::isnan(back[i]), i / kInt16Block == 1) << i;
  }
}

// A peer may send any bytes.
TEST(Int16Blocks, AnyBytesAreNumbersOrNaN) {
  for (int exponent = -32768; exponent <= 32767; ++exponent) {
    const std::int16_t block[] = {static_cast<std::int16_t>(exponent), -32768, -32767, 32767, 1};
    std::vector<float> values(4);
    unpack_int16(std::as_bytes(std::span(block)), values);
    const bool possible = exponent >= -126 && exponent <= 113;
    for (const float value : values) {
      ASSERT_FALSE(std::isinf(value)) << exponent;
      ASSERT_EQ(std::isnan(value), !possible) << exponent;
    }
  }
}

}  // namespace
}  // namespace tessera::worker
