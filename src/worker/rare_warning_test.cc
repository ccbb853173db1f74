#include "worker/rare_warning.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

TEST(RareWarning, IsALineAPauseHoweverOftenItHappens) {
  RareWarning warning{"clients"};
  const Deadline start = Clock::now();
  EXPECT_EQ(warning.line_at("gone", start), "gone");
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(warning.line_at("gone", start));
  EXPECT_EQ(warning.line_at("late", start + kWarnPause),
            "late; 1000 more clients since the last line");
  EXPECT_EQ(warning.line_at("gone", start + 2 * kWarnPause), "gone");
}

}  // namespace
}  // namespace tessera::worker
