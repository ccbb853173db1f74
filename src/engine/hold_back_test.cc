#include "engine/hold_back.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using std::chrono::seconds;

constexpr HoldBack::Clock::time_point kStart{seconds(1000)};

TEST(HoldBack, HoldsForAWhileAndThenNotForLong) {
  HoldBack hold_back(seconds(10));
  EXPECT_FALSE(hold_back.holds(false, kStart));
  for (const int try_at : {0, 100, 200}) {
    EXPECT_TRUE(hold_back.holds(true, kStart + seconds(try_at)));
    EXPECT_TRUE(hold_back.holds(true, kStart + seconds(try_at + 9)));
    EXPECT_FALSE(hold_back.holds(true, kStart + seconds(try_at + 10)));
    EXPECT_FALSE(hold_back.holds(true, kStart + seconds(try_at + 99)));
  }
}

// The change that was due was made, or is due no more; the next one is another.
TEST(HoldBack, BeginsAnew) {
  HoldBack hold_back(seconds(10));
  EXPECT_TRUE(hold_back.holds(true, kStart));
  EXPECT_FALSE(hold_back.holds(true, kStart + seconds(20)));
  EXPECT_FALSE(hold_back.holds(false, kStart + seconds(21)));
  EXPECT_TRUE(hold_back.holds(true, kStart + seconds(22)));
  EXPECT_FALSE(hold_back.holds(true, kStart + seconds(32)));
}

}  // namespace
}  // namespace tessera
