#include "pipeline/least_times.h"

#include <gtest/gtest.h>

#include <functional>

namespace tessera {
namespace {

// How many rounds are enough, of rows that take so long; pieces take ten times that.
int rounds_of(const std::function<double(int round)>& row_s, LeastTimes& times) {
  int rounds = 0;
  for (; !times.enough(); ++rounds) times.add(10 * row_s(rounds), row_s(rounds));
  return rounds;
}

TEST(LeastTimes, SteadyOnesAreFew) {
  LeastTimes fast, slow, noisy;
  EXPECT_EQ(rounds_of([](int) { return 1e-4; }, fast), 12);
  EXPECT_EQ(rounds_of([](int) { return 0.1; }, slow), 3) << "each takes long";
  EXPECT_EQ(rounds_of([](int i) { return i % 3 == 0 ? 1e-4 : 5e-4; }, noisy), 12) << "two agree";
  EXPECT_EQ(noisy.row_s(), 1e-4);
  EXPECT_EQ(noisy.piece_s(), 10 * 1e-4);
  EXPECT_EQ(noisy.spread(), 0.0);
}

TEST(LeastTimes, OthersGoOnUntilTwoAgreeOrItIsEnough) {
  LeastTimes late, never, slow;
  EXPECT_EQ(rounds_of([](int i) { return i == 0 || i == 30 ? 1e-4 : 2e-4; }, late), 31);
  EXPECT_LT(late.spread(), 0.01);
  EXPECT_EQ(rounds_of([](int i) { return i == 0 ? 1e-4 : 2e-4; }, never), 60);
  EXPECT_NEAR(never.spread(), 1.0, 1e-9);
  EXPECT_EQ(never.row_s(), 1e-4);
  EXPECT_LT(rounds_of([](int i) { return i == 0 ? 0.01 : 0.02; }, slow), 12) << "a second of it";
}

}  // namespace
}  // namespace tessera
