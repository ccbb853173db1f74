#include "experts/faster_team.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

// So many jobs of which a team's take so long; which team computes most of the last thousand.
int mostly(FasterTeam& faster, int jobs, double first_us, double second_us) {
  int second = 0;
  for (int i = 0; i < jobs; ++i) {
    const int team = faster.next();
    if (jobs - i <= 1000) second += team;
    faster.learn(team, team == 0 ? first_us : second_us);
  }
  return second > 500 ? 1 : 0;
}

TEST(FasterTeam, IsFoundAndKept) {
  for (const double second_us : {2.0, 0.5}) {
    FasterTeam faster;
    const int expected = second_us < 1.0 ? 1 : 0;
    EXPECT_EQ(mostly(faster, 2000, 1.0, second_us), expected);
    EXPECT_EQ(faster.chosen(), expected);
  }
}

TEST(FasterTeam, StaysWhereItMakesNoDifference) {
  FasterTeam faster;
  EXPECT_EQ(mostly(faster, 20000, 1.0, 0.98), 0);
}

// Who wakes takes long, which says nothing of how it computes.
TEST(FasterTeam, FirstJobsOfATurnDoNotCount) {
  FasterTeam faster;
  int last = -1;
  for (int i = 0; i < 1000; ++i) {
    const int team = faster.next();
    faster.learn(team, team != last ? 100.0 : team == 0 ? 1.0 : 0.5);
    last = team;
  }
  EXPECT_EQ(faster.chosen(), 1);
}

TEST(FasterTeam, ChangesWhenTheMachineDoes) {
  FasterTeam faster;
  EXPECT_EQ(mostly(faster, 10000, 1.0, 2.0), 0);
  EXPECT_EQ(mostly(faster, 40000, 4.0, 2.0), 1);
  EXPECT_EQ(mostly(faster, 40000, 1.0, 2.0), 0);
}

// Trying costs less than one job in a hundred.
TEST(FasterTeam, SeldomTriesTheOther) {
  FasterTeam faster;
  mostly(faster, 10000, 1.0, 2.0);
  int tried = 0;
  for (int i = 0; i < 100000; ++i) {
    tried += faster.next();
    faster.learn(faster.next(), faster.next() == 0 ? 1.0 : 2.0);
  }
  EXPECT_GT(tried, 0);
  EXPECT_LT(tried, 1000);
}

}  // namespace
}  // namespace tessera
