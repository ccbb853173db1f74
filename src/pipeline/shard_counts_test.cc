// How often a shard counts the routing of its steps.
#include <gtest/gtest.h>

#include "experts/dispatcher_rig.h"
#include "pipeline/shard.h"

namespace tessera {
namespace {

TEST(CountedSteps, AreAllWhereTheRoutingIsAtHandAndOneInSoManyElsewhere) {
  for (std::uint64_t step = 0; step < 100; ++step) {
    EXPECT_TRUE(counts_step(/*cpu_threads=*/true, step));
    EXPECT_EQ(counts_step(/*cpu_threads=*/false, step), step % kCountEvery == 0);
  }
}

// Of a device without CPU threads nothing is read in the other steps.
TEST(CountedSteps, OfADeviceThatComputesOnItsOwn) {
  ShardLayout layout;
  layout.first_layer = 1;  // has the experts
  layout.end_layer = 2;
  layout.embedding = layout.head = false;
  layout.max_rows = kRows;
  RoutingCounts counts(spec_of());
  auto device = std::make_unique<FakeDevice>();
  std::mt19937 random(3);
  fill(*device, random, kRows);
  LocalShard shard(std::move(device), layout, {}, {.counts = &counts});
  Piece piece;
  piece.allocate({.max_rows = kRows, .n_embd = kEmbd});
  for (std::uint64_t step = 0; step <= 2 * kCountEvery; ++step)
    ASSERT_TRUE(shard.finish(piece, [] {}));
  RoutingProfile profile(spec_of(), "");
  EXPECT_EQ(counts.take(profile, 1e6), 3.0 * kRows);
}

}  // namespace
}  // namespace tessera
