#include "worker/state_changes.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

namespace tessera::worker {
namespace {

using Kind = WireStateChange::Kind;
using Changes = std::vector<WireStateChange>;

WireStateChange reset(std::uint32_t slot) {
  return {.kind = Kind::reset_slot, .to = slot};
}

WireStateChange copy(std::uint32_t from, std::uint32_t to) {
  return {.kind = Kind::copy_slot, .from = from, .to = to};
}

WireStateChange copy_page(std::uint16_t group, std::uint32_t from, std::uint32_t to) {
  return {.kind = Kind::copy_page, .kv_group = group, .from = from, .to = to};
}

Changes kept(Changes changes) {
  drop_overwritten(changes);
  return changes;
}

TEST(StateChanges, TheLastOneOfAPlaceIsKept) {
  EXPECT_EQ(kept({}), Changes());
  EXPECT_EQ(kept({reset(1), reset(2), reset(1)}), (Changes{reset(2), reset(1)}));
  EXPECT_EQ(kept({reset(1), copy(2, 1)}), (Changes{copy(2, 1)}));
  EXPECT_EQ(kept({copy_page(0, 1, 2), copy_page(1, 1, 2), reset(2), copy_page(0, 3, 2)}),
            (Changes{copy_page(1, 1, 2), reset(2), copy_page(0, 3, 2)}));
}

TEST(StateChanges, WhatIsCopiedFromIsKept) {
  const Changes all = {reset(1), copy(1, 2), reset(1)};
  EXPECT_EQ(kept(all), all);
  EXPECT_EQ(kept({reset(1), copy(1, 2), reset(1), copy(1, 2)}), (Changes{reset(1), copy(1, 2)}));
}

// Of sequences that begin with the state of others and fail, again and again.
TEST(StateChanges, StayFewForEver) {
  Changes changes;
  for (std::uint32_t i = 0; i < 10000; ++i) {
    changes.push_back(reset(i % 4));
    if (i % 3 == 0) changes.push_back(copy(7, i % 4));
    changes.push_back(copy_page(0, 9, i % 5));
    drop_overwritten(changes);
    ASSERT_LE(changes.size(), 9u);
  }
}

// Any list leaves the same state behind.
TEST(StateChanges, DoTheSame) {
  using Place = std::tuple<bool, int, std::uint32_t>;
  const auto state_after = [](const Changes& changes) {
    std::map<Place, Place> state;  // what a place holds: what another held before, or nothing
    const auto held = [&](const Place& place) {
      const auto found = state.find(place);
      return found == state.end() ? place : found->second;
    };
    for (const WireStateChange& change : changes) {
      const bool page = change.kind == Kind::copy_page;
      const Place to{page, change.kv_group, change.to};
      state[to] = change.kind == Kind::reset_slot ? Place{true, -1, 0}
                                                  : held({page, change.kv_group, change.from});
    }
    std::erase_if(state, [](const auto& entry) { return entry.first == entry.second; });
    return state;
  };
  std::mt19937 random(11);
  for (int round = 0; round < 5000; ++round) {
    Changes changes;
    for (auto n = random() % 12; n > 0; --n) {
      const auto from = static_cast<std::uint32_t>(random() % 3);
      const auto to = static_cast<std::uint32_t>(random() % 3);
      const std::uint16_t group = random() % 2;
      switch (random() % 3) {
        case 0:
          changes.push_back(reset(to));
          break;
        case 1:
          changes.push_back(copy(from, to));
          break;
        default:
          changes.push_back(copy_page(group, from, to));
      }
    }
    ASSERT_EQ(state_after(kept(changes)), state_after(changes));
  }
}

}  // namespace
}  // namespace tessera::worker
