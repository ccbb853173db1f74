#include "plan/step_rows.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Rows = std::vector<int>;

// A plan for one GPU, of whose experts some are away and cross.
Plan crossing_plan(int away, int all = 1000) {
  ShardPlan shard{.experts = all - away, .experts_host = away, .streamed_bytes = away};
  Plan plan;
  plan.context = 32768;
  plan.parallel = 1;
  plan.shards.push_back(std::move(shard));
  return plan;
}

TEST(StepRows, AreMoreTheMoreExpertsCross) {
  EXPECT_EQ(step_rows(crossing_plan(0)), (Rows{2048, 1024, 512}));
  EXPECT_EQ(step_rows(crossing_plan(20)), (Rows{2048, 1024, 512}));
  EXPECT_EQ(step_rows(crossing_plan(200)), (Rows{4096, 2048, 1024, 512}));
  EXPECT_EQ(step_rows(crossing_plan(400)), (Rows{8192, 4096, 2048, 1024, 512}));
  EXPECT_EQ(step_rows(crossing_plan(1000)), (Rows{16384, 8192, 4096, 2048, 1024, 512}));
}

TEST(StepRows, AreNoMoreThanSequencesHave) {
  Plan plan = crossing_plan(1000);
  plan.context = 4096;
  EXPECT_EQ(step_rows(plan), (Rows{4096, 2048, 1024, 512}));
  plan.parallel = 2;
  EXPECT_EQ(step_rows(plan).front(), 8192);
}

TEST(StepRows, AreFewWhereNothingCrossesToOneDevice) {
  Plan plan = crossing_plan(1000);
  plan.shards[0].streamed_bytes = 0;
  EXPECT_EQ(step_rows(plan).front(), 2048);
  plan = crossing_plan(1000);
  plan.shards.push_back(plan.shards[0]);
  EXPECT_EQ(step_rows(plan).front(), 2048);
}

TEST(StepRows, MayCostAnEighthOfWhatIsAway) {
  EXPECT_TRUE(rows_cost_little(crossing_plan(450), crossing_plan(400)));
  EXPECT_FALSE(rows_cost_little(crossing_plan(451), crossing_plan(400)));
  EXPECT_TRUE(rows_cost_little(crossing_plan(0), crossing_plan(0)));
  EXPECT_FALSE(rows_cost_little(crossing_plan(1), crossing_plan(0)));
}

TEST(StepRows, CostNoContextNoTableAndNotTheLink) {
  const Plan least = crossing_plan(400);
  Plan larger = least;
  larger.context = least.context / 2;
  EXPECT_FALSE(rows_cost_little(larger, least));
  larger = least;
  larger.shards[0].layout.table_device_rows = 0;
  EXPECT_FALSE(rows_cost_little(larger, least));
  // Buffers for so many rows left the host no room for experts packed for the link.
  larger = least;
  larger.shards[0].streamed_bytes = 0;
  EXPECT_FALSE(rows_cost_little(larger, least));
}

}  // namespace
}  // namespace tessera
