#include "pipeline/spoilt_slots.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Kind = StateChange::Kind;

const Error kLate{ErrorCode::unavailable, "late"};
const Error kLater{ErrorCode::unavailable, "later"};

SpoiltSlots spoilt_by_rows_of(std::vector<int> slots) {
  std::vector<SequenceRows> sequences;
  for (const int slot : slots) sequences.push_back({.n_rows = 1, .slot = slot});
  SpoiltSlots spoilt;
  spoilt.add({.sequences = sequences}, kLate);
  return spoilt;
}

TEST(SpoiltSlots, KeepTheirFirstFailure) {
  SpoiltSlots spoilt = spoilt_by_rows_of({3, 5});
  const SequenceRows sequences[] = {{.n_rows = 1, .slot = 5}, {.n_rows = 1, .slot = 6}};
  spoilt.add({.sequences = sequences}, kLater);
  EXPECT_EQ(spoilt.find(3)->message, "late");
  EXPECT_EQ(spoilt.find(5)->message, "late");
  EXPECT_EQ(spoilt.find(6)->message, "later");
  EXPECT_EQ(spoilt.find(4), nullptr);
}

TEST(SpoiltSlots, AreResetAndCopiedInOrder) {
  SpoiltSlots spoilt = spoilt_by_rows_of({1});
  const StateChange changes[] = {{.kind = Kind::copy_slot, .from = 1, .to = 2},
                                 {.kind = Kind::copy_page, .from = 2, .to = 1},
                                 {.kind = Kind::reset_slot, .to = 1},
                                 {.kind = Kind::copy_slot, .from = 1, .to = 3}};
  spoilt.apply(changes);
  EXPECT_EQ(spoilt.find(1), nullptr);
  EXPECT_EQ(spoilt.find(2)->message, "late");
  EXPECT_EQ(spoilt.find(3), nullptr);
  const StateChange good{.kind = Kind::copy_slot, .from = 1, .to = 2};
  spoilt.apply({&good, 1});
  EXPECT_TRUE(spoilt.empty());
}

TEST(SpoiltSlots, OfABatch) {
  const SpoiltSlots spoilt = spoilt_by_rows_of({1, 2});
  const SequenceRows sequences[] = {{.slot = 1}, {.slot = 2}, {.slot = 3}};
  const auto batch = [&](std::size_t begin, std::size_t n) {
    return BatchView{.sequences = std::span(sequences).subspan(begin, n)};
  };
  EXPECT_NE(spoilt.all_of(batch(0, 2)), nullptr);
  EXPECT_EQ(spoilt.all_of(batch(0, 3)), nullptr);
  EXPECT_NE(spoilt.any_of(batch(1, 2)), nullptr);
  EXPECT_EQ(spoilt.any_of(batch(2, 1)), nullptr);
  EXPECT_EQ(SpoiltSlots().all_of(batch(0, 0)), nullptr);
}

}  // namespace
}  // namespace tessera
