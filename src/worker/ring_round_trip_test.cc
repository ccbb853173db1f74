#include "worker/ring_round_trip.h"

#include <gtest/gtest.h>

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

TEST(RingRoundTrip, TakesSomeTime) {
  const auto took = ring_round_trip(after(60s));
  ASSERT_TRUE(took) << took.error().message;
  EXPECT_GT(*took, 0ns);
  EXPECT_LT(*took, 5s);
}

TEST(RingRoundTrip, EndsAtItsDeadline) {
  EXPECT_FALSE(ring_round_trip(Clock::now() - 1s));
}

}  // namespace
}  // namespace tessera::worker
