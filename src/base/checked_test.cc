#include "base/checked.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

TEST(Checked, SaysWhenASumOrAProductWouldWrap) {
  EXPECT_EQ(checked_add(kMost - 1, std::int64_t{1}), kMost);
  EXPECT_FALSE(checked_add(kMost, std::int64_t{1}));
  EXPECT_FALSE(checked_mul(kMost, std::int64_t{2}));
}

TEST(Checked, SaturatedSumsStopAtTheEnds) {
  EXPECT_EQ(saturated_sum({}), 0);
  EXPECT_EQ(saturated_sum({1, 2, -4}), -1);
  EXPECT_EQ(saturated_sum({kMost, 1}), kMost);
  EXPECT_EQ(saturated_sum({kMost, kMost, kMost, kMost}), kMost);
  EXPECT_EQ(saturated_sum({kLeast, -1}), kLeast);
}

TEST(Checked, SaturatedProductsStopAtTheEnd) {
  EXPECT_EQ(saturated_mul<std::int64_t>(3, 4), 12);
  EXPECT_EQ(saturated_mul(kMost, std::int64_t{2}), kMost);
  EXPECT_EQ(saturated_mul(std::int64_t{1} << 40, std::int64_t{1} << 40), kMost);
}

TEST(Checked, TruncatesWhatFits) {
  EXPECT_EQ(saturated_trunc(2.9), 2);
  EXPECT_EQ(saturated_trunc(-2.9), -2);
  EXPECT_EQ(saturated_trunc(static_cast<double>(kMost)), kMost);
  EXPECT_EQ(saturated_trunc(1e300), kMost);
  EXPECT_EQ(saturated_trunc(-1e300), kLeast);
  EXPECT_EQ(saturated_trunc(std::numeric_limits<double>::quiet_NaN()), 0);
}

TEST(Checked, RoundsUpToTheEnd) {
  EXPECT_EQ(ceil_div(kMost, std::int64_t{1} << 20), std::int64_t{1} << 43);
  EXPECT_EQ(ceil_div(std::int64_t{0}, std::int64_t{4}), 0);
  EXPECT_EQ(ceil_div(std::int64_t{-7}, std::int64_t{4}), -1);
  EXPECT_EQ(saturated_round_up(65, 64), 128);
  EXPECT_EQ(saturated_round_up(kMost - 1, 64), kMost);
}

TEST(Checked, SaturatedRestsStopAtTheEnds) {
  EXPECT_EQ(saturated_rest(7, {}), 7);
  EXPECT_EQ(saturated_rest(7, {3, 5}), -1);
  EXPECT_EQ(saturated_rest(0, {kMost, kMost}), kLeast);
  EXPECT_EQ(saturated_rest(1, {kLeast}), kMost);
}

}  // namespace
}  // namespace tessera
