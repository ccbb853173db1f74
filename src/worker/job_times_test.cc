#include "worker/job_times.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

TEST(JobTimes, TheFirstDeadlineGrowsWithTheJob) {
  const JobTimes times(30s);
  EXPECT_GE(times.deadline(1), 2s);
  EXPECT_GE(times.deadline(4096), 6s);
  EXPECT_EQ(times.deadline(1 << 22), 30s) << "the most there is";
}

TEST(JobTimes, ASlowWorkerGetsTheTimeItNeeds) {
  JobTimes times(30s);
  times.learn_late(8, 3s);
  EXPECT_GE(times.deadline(8), 6s);
  EXPECT_LT(times.deadline(8), 7s);
  times.learn_late(8, 1s);
  EXPECT_GE(times.deadline(8), 6s) << "an earlier one took longer";
}

TEST(JobTimes, FollowsWhatWasSeen) {
  JobTimes times(30s);
  times.learn(10, 1ms);
  EXPECT_EQ(times.deadline(10), 70ms);
  times.learn(10, 2ms);
  EXPECT_EQ(times.deadline(10), 90ms);
  for (int i = 0; i < 200; ++i) times.learn(10, 1ms);
  EXPECT_LT(times.deadline(10), 71ms);
}

}  // namespace
}  // namespace tessera::worker
