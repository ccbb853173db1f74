#include "worker/page_tables.h"

#include <gtest/gtest.h>

#include <array>

namespace tessera::worker {
namespace {

constexpr auto kTokens = static_cast<std::uint32_t>(kPageTokens);

// All of a long context on one page: scratch memory is made for as many pages as there are.
TEST(PageTables, NoMorePagesAreVisibleThanThereAre) {
  PageTables tables({.slots = 1, .groups = 1, .positions = 16 * kPageTokens});
  std::vector<PageChange> changes;
  for (std::uint32_t i = 0; i < 16; ++i) changes.push_back({.slot = 0, .index = i, .page = 0});
  ASSERT_TRUE(tables.apply(changes).ok());
  const std::array<std::uint32_t, 1> one = {1}, all = {16};
  const WireSequence last{.rows = 1, .first_position = 16 * kTokens - 1, .slot = 0};
  const std::array<int, 1> whole = {0}, narrow = {8};
  EXPECT_FALSE(tables.check_visible(whole, one, last).ok());
  EXPECT_TRUE(tables.check_visible(whole, all, last).ok());
  EXPECT_TRUE(tables.check_visible(narrow, one, last).ok()) << "a window within a page";
  const WireSequence first{.rows = kTokens, .first_position = 0, .slot = 0};
  EXPECT_TRUE(tables.check_visible(whole, one, first).ok());
}

TEST(PageTables, TheirSizeIsKnownBefore) {
  EXPECT_EQ(PageTables::bytes({.slots = 0, .groups = 1, .positions = 64}), 0);
  EXPECT_GT(*PageTables::bytes({.slots = 4096, .groups = 64, .positions = 1 << 30}),
            std::int64_t{1} << 40);
  EXPECT_FALSE(PageTables::bytes({.slots = 1 << 30, .groups = 1 << 30, .positions = 1 << 30}));
}

}  // namespace
}  // namespace tessera::worker
