#include "experts/pair_pace.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(PairPace, FollowsWhatWasSeen) {
  PairPace pace;
  EXPECT_EQ(pace.us(8), 0) << "nothing is known";
  pace.learn(8, 400);
  EXPECT_DOUBLE_EQ(pace.us(8), 400);
  EXPECT_DOUBLE_EQ(pace.us(2), 100);
  pace.learn(8, 1200);
  EXPECT_DOUBLE_EQ(pace.us(8), 500) << "one accident counts little";
  for (int i = 0; i < 100; ++i) pace.learn(8, 1200);
  EXPECT_NEAR(pace.us(8), 1200, 1);
}

// A pair of a smaller job takes no less, one of a larger job may take much less.
TEST(PairPace, ALargerJobTakesAtMostWhatASmallerOnesPairsDo) {
  PairPace pace;
  pace.learn(1, 1000);
  EXPECT_DOUBLE_EQ(pace.us(400), 400'000);
  pace.learn(400, 40'000);
  EXPECT_DOUBLE_EQ(pace.us(400), 40'000);
  EXPECT_DOUBLE_EQ(pace.us(1), 1000) << "sizes are learnt apart";
  PairPace large;
  large.learn(400, 40'000);
  EXPECT_EQ(large.us(1), 0) << "nothing is known of it";
}

TEST(PairPace, IsRaisedToALeast) {
  PairPace pace;
  pace.raise(10, 500);
  EXPECT_DOUBLE_EQ(pace.us(10), 500);
  pace.raise(10, 200);
  EXPECT_DOUBLE_EQ(pace.us(10), 500);
}

}  // namespace
}  // namespace tessera
