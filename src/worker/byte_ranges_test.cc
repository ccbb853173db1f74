#include "worker/byte_ranges.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera::worker {
namespace {

ByteRanges of(std::vector<ByteRange> list) {
  ByteRanges ranges;
  for (const ByteRange& range : list) ranges.add(range);
  return ranges;
}

TEST(ByteRanges, JoinWhatTouches) {
  EXPECT_EQ(of({{0, 10}, {20, 30}, {10, 20}}).all(), (std::vector<ByteRange>{{0, 30}}));
  EXPECT_EQ(of({{5, 6}, {0, 100}}).all(), (std::vector<ByteRange>{{0, 100}}));
  EXPECT_EQ(of({{7, 7}}).all(), std::vector<ByteRange>{});
  EXPECT_EQ(of({{20, 30}, {0, 10}}).bytes(), 20u);
}

TEST(ByteRanges, PagesAreCountedOnce) {
  EXPECT_EQ(of({{0, 1}, {4095, 4096}}).page_bytes(), 4096u);
  EXPECT_EQ(of({{4095, 4097}, {5000, 5001}, {12288, 12289}}).page_bytes(), 3 * 4096u);
}

TEST(ByteRanges, AgreeWithBits) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<bool> bits(200), other_bits(200);
    ByteRanges ranges, other;
    for (int i = 0; i < 12; ++i) {
      const std::uint64_t begin = random() % 180, end = begin + random() % 20;
      const bool first = random() % 2 == 0;
      (first ? ranges : other).add({begin, end});
      for (std::uint64_t b = begin; b < end; ++b) (first ? bits : other_bits)[b] = true;
    }
    const ByteRanges rest = ranges.without(other);
    std::vector<bool> rest_bits(200);
    for (const ByteRange& range : rest.all())
      for (std::uint64_t b = range.begin; b < range.end; ++b) rest_bits[b] = true;
    for (std::size_t b = 0; b < 200; ++b)
      ASSERT_EQ(rest_bits[b], bits[b] && !other_bits[b]) << round << ", byte " << b;
    for (std::size_t i = 1; i < rest.all().size(); ++i)
      ASSERT_LT(rest.all()[i - 1].end, rest.all()[i].begin);
  }
}

}  // namespace
}  // namespace tessera::worker
