#include "worker/job_times.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

TEST(JobTimes, TheFirstDeadlineIsAMultipleOfTheHostsTime) {
  const JobTimes times(30s);
  EXPECT_EQ(times.deadline(1, 1000), 520ms);
  EXPECT_EQ(times.deadline(8, 100'000), 2500ms);
  EXPECT_EQ(times.deadline(1 << 22, 1e12), 30s) << "the most there is";
  EXPECT_EQ(times.deadline(8, 0), 30s) << "nothing is known";
}

TEST(JobTimes, AnAccidentDoublesTheTime) {
  JobTimes times(30s);
  times.learn_late(8, 3s);
  EXPECT_EQ(times.deadline(8, 0), 6050ms);
  times.learn_late(8, 1s);
  EXPECT_EQ(times.deadline(8, 0), 6050ms) << "an earlier one took longer";
}

TEST(JobTimes, FollowsWhatWasSeen) {
  JobTimes times(30s);
  times.learn(10, 1ms);
  EXPECT_EQ(times.deadline(10, 0), 70ms);
  times.learn(10, 9ms);
  EXPECT_EQ(times.deadline(10, 0), 90ms) << "an eighth of it";
  for (int i = 0; i < 100; ++i) times.learn(10, 1ms);
  EXPECT_LT(times.deadline(10, 0), 71ms);
  EXPECT_GT(times.deadline(1000, 0), 2s) << "at most what those of a smaller job take";
  times.learn(1000, 10ms);
  EXPECT_EQ(times.deadline(1000, 0), 250ms);
  EXPECT_LT(times.deadline(10, 0), 71ms) << "another size";
}

TEST(JobTimes, AJobIsSuspectAfterThreeTimesTheLessOfBoth) {
  JobTimes times(30s);
  EXPECT_EQ(times.suspect(10, 0), 30s) << "nothing is known";
  EXPECT_EQ(times.suspect(10, 2000), 6ms);
  times.learn(10, 1ms);
  EXPECT_EQ(times.suspect(10, 0), 3ms);
  EXPECT_EQ(times.suspect(10, 2000), 3ms);
  EXPECT_EQ(times.suspect(10, 500), 1500us);
}

// However slow it gets, by little steps or at once, and whatever it says.
TEST(JobTimes, AWorkerCannotMakeItselfMoreTimeThanTheHostAllows) {
  JobTimes times(30s);
  constexpr double kHostUs = 2000;
  for (int i = 0; i < 100; ++i) {
    times.learn(10, times.deadline(10, kHostUs) - 1us);
    EXPECT_LE(times.deadline(10, kHostUs), 140ms);
  }
  times.learn_late(10, 1h);
  EXPECT_EQ(times.deadline(10, kHostUs), 140ms);
}

}  // namespace
}  // namespace tessera::worker
