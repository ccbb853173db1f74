#include "quant/block_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "quant/half.h"

namespace tessera {
namespace {

std::vector<float> gaussian(std::size_t n, float stddev, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, stddev);
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

std::vector<float> round_trip(BlockType type, const std::vector<float>& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::byte> row(static_cast<std::size_t>(row_bytes(type, n)));
  quantize_row(type, x.data(), n, row.data());
  std::vector<float> back(x.size());
  dequantize_row(type, row.data(), n, back.data());
  return back;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    power += double{x[i]} * x[i];
  }
  return std::sqrt(error / power);
}

// Root mean square error over root mean square of a normal sample that each format must reach.
double error_bound(BlockType type) {
  switch (type) {
    case BlockType::F32:
      return 0;
    case BlockType::F16:
      return 3e-4;
    case BlockType::BF16:
      return 2.5e-3;
    case BlockType::Q8_0:
      return 0.0065;
    case BlockType::Q4_0:
      return 0.089;
    case BlockType::Q4_1:
      return 0.080;
    case BlockType::Q5_0:
      return 0.045;
    case BlockType::Q5_1:
      return 0.039;
    case BlockType::Q2_K:
      return 0.31;
    case BlockType::Q3_K:
      return 0.165;
    case BlockType::Q4_K:
      return 0.081;
    case BlockType::Q5_K:
      return 0.041;
    case BlockType::Q6_K:
      return 0.021;
    case BlockType::IQ4_NL:
      return 0.082;
    case BlockType::IQ4_XS:
      return 0.083;
    case BlockType::MXFP4:
      return 0.12;
  }
  return 0;
}

TEST(BlockFormat, TableAgreesWithItself) {
  std::set<std::string_view> names;
  for (const BlockType type : all_block_types()) {
    const auto id = static_cast<std::uint32_t>(type);
    const BlockFormat* format = block_format(id);
    ASSERT_NE(format, nullptr);
    EXPECT_EQ(known_block_format(id), format);
    EXPECT_EQ(block_type_from_name(format->name), type);
    EXPECT_TRUE(names.insert(format->name).second);
    EXPECT_EQ(row_bytes(type, 3 * format->elems), 3 * format->bytes);
    EXPECT_EQ(row_bytes(type, 0), 0);
  }
  EXPECT_EQ(all_block_types().size(), 16u);
}

TEST(BlockFormat, KnownButUnsupportedAndUnknownIds) {
  EXPECT_EQ(block_format(16u), nullptr);
  EXPECT_STREQ(block_type_name(16u), "IQ2_XXS");
  EXPECT_EQ(known_block_format(16u)->bytes, 66);
  for (const std::uint32_t id : {4u, 5u, 31u, 36u, 41u, 999u, 0xffffffffu}) {
    EXPECT_EQ(block_format(id), nullptr) << id;
    EXPECT_EQ(known_block_format(id), nullptr) << id;
    EXPECT_STREQ(block_type_name(id), "unknown");
  }
  EXPECT_EQ(block_type_from_name("IQ2_XXS"), std::nullopt);
  EXPECT_EQ(block_type_from_name("q4_k"), std::nullopt);
}

TEST(Quantize, ErrorOfNormalData) {
  for (const float stddev : {1e-2f, 1.0f, 30.0f}) {
    const std::vector<float> x = gaussian(256 * 64, stddev, 3);
    for (const BlockType type : all_block_types()) {
      EXPECT_LE(relative_error(x, round_trip(type, x)), error_bound(type))
          << block_type_name(type) << " stddev " << stddev;
    }
  }
}

TEST(Quantize, OffsetDataSuitsTheFormatsWithAMinimum) {
  std::vector<float> x = gaussian(256 * 16, 0.1f, 5);
  for (float& v : x) v -= 1.0f;
  for (const BlockType type :
       {BlockType::Q4_1, BlockType::Q5_1, BlockType::Q4_K, BlockType::Q5_K}) {
    EXPECT_LE(relative_error(x, round_trip(type, x)), 0.012) << block_type_name(type);
  }
}

TEST(Quantize, ZerosStayZero) {
  const std::vector<float> zeros(512, 0.0f);
  for (const BlockType type : all_block_types()) {
    for (const float v : round_trip(type, zeros)) EXPECT_EQ(v, 0.0f) << block_type_name(type);
  }
}

TEST(Quantize, DecodedValuesEncodeAlmostToThemselves) {
  const std::vector<float> x = gaussian(256 * 8, 0.5f, 9);
  for (const BlockType type : all_block_types()) {
    const std::vector<float> once = round_trip(type, x);
    EXPECT_LE(relative_error(once, round_trip(type, once)), error_bound(type) * 0.6)
        << block_type_name(type);
  }
}

TEST(Quantize, ExtremeInputGivesFiniteOutput) {
  for (const float extreme : {1e-40f, 1e-20f, 1e5f, 1e20f, std::numeric_limits<float>::max()}) {
    std::vector<float> x = gaussian(256, 1.0f, 11);
    for (float& v : x) v = v > 0 ? extreme : -extreme;
    x[17] = extreme / 2;
    for (const BlockType type : all_block_types()) {
      if (type == BlockType::F16 || type == BlockType::BF16) continue;  // infinity is right there
      for (const float v : round_trip(type, x)) {
        EXPECT_TRUE(std::isfinite(v)) << block_type_name(type) << " " << extreme;
      }
    }
  }
}

TEST(Quantize, IsDeterministic) {
  const std::vector<float> x = gaussian(1024, 0.1f, 13);
  for (const BlockType type : all_block_types()) {
    EXPECT_EQ(round_trip(type, x), round_trip(type, x)) << block_type_name(type);
  }
}

TEST(RandomBlocks, MeanAndDeviation) {
  for (const float stddev : {1e-3f, 0.02f, 1.0f, 50.0f}) {
    for (const BlockType type : all_block_types()) {
      const BlockFormat& format = block_format(type);
      const std::int64_t blocks = (1 << 18) / format.elems;
      std::vector<std::byte> bytes(static_cast<std::size_t>(blocks * format.bytes));
      random_blocks(type, 1, 0, blocks, stddev, bytes.data());
      std::vector<float> values(static_cast<std::size_t>(blocks * format.elems));
      dequantize_row(type, bytes.data(), blocks * format.elems, values.data());
      double sum = 0, squares = 0;
      for (const float v : values) {
        sum += v;
        squares += double{v} * v;
      }
      const auto n = static_cast<double>(values.size());
      EXPECT_NEAR(sum / n / stddev, 0, 0.02) << format.name << " " << stddev;
      EXPECT_NEAR(std::sqrt(squares / n) / stddev, 1, 0.05) << format.name << " " << stddev;
    }
  }
}

TEST(RandomBlocks, AnyRangeCanBeMadeOnItsOwn) {
  for (const BlockType type : all_block_types()) {
    const auto bytes = static_cast<std::size_t>(block_format(type).bytes);
    std::vector<std::byte> whole(20 * bytes), parts(20 * bytes), other(20 * bytes);
    random_blocks(type, 5, 100, 20, 0.1f, whole.data());
    random_blocks(type, 5, 107, 13, 0.1f, parts.data() + 7 * bytes);
    random_blocks(type, 5, 100, 7, 0.1f, parts.data());
    random_blocks(type, 6, 100, 20, 0.1f, other.data());
    EXPECT_EQ(whole, parts) << block_type_name(type);
    EXPECT_NE(whole, other) << block_type_name(type);
  }
}

TEST(Half, EveryBitPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    const bool nan = (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0;
    EXPECT_EQ(std::isnan(value), nan);
    if (nan) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), half);
      const int exponent = static_cast<int>(bits >> 10) & 31;
      if (exponent != 31) {
        const double mantissa = (bits & 1023) + (exponent ? 1024 : 0);
        const double want = std::ldexp(mantissa, (exponent ? exponent : 1) - 25);
        ASSERT_EQ(value, bits & 0x8000 ? -want : want);
      }
    }
    if (!std::isnan(bf16_to_float(half))) {
      ASSERT_EQ(float_to_bf16(bf16_to_float(half)), half);
    }
  }
}

TEST(Half, RoundsToNearestEvenBetweenNeighbours) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = half_to_float(bits),
                 high = half_to_float(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const auto even = static_cast<std::uint16_t>(bits + (bits & 1));
    ASSERT_EQ(float_to_half(middle), even);
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(float_to_half(65519.99f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-INFINITY), 0xfc00);
  EXPECT_EQ(float_to_half(1e-10f), 0);
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3f80);  // a tie, to even
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3f82);  // a tie, to even
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace tessera
