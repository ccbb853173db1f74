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

TEST(Checked, SaturatedRestsStopAtTheEnds) {
  EXPECT_EQ(saturated_rest(7, {}), 7);
  EXPECT_EQ(saturated_rest(7, {3, 5}), -1);
  EXPECT_EQ(saturated_rest(0, {kMost, kMost}), kLeast);
  EXPECT_EQ(saturated_rest(1, {kLeast}), kMost);
}

}  // namespace
}  // namespace tessera
