#include "state/sequence_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace tessera {
namespace {

SequencePoolLayout layout(std::vector<SequencePoolLayout::Group> groups, int slots, int max_chunk) {
  return {.groups = std::move(groups), .slots = slots, .max_chunk = max_chunk};
}

TEST(SequencePool, GivesPagesAsTheSequenceGrows) {
  SequencePool pool(layout({{.window = 0, .pages = 4}}, 2, 64));
  auto sequence = pool.admit(130);
  ASSERT_TRUE(sequence);
  EXPECT_EQ(pool.free_pages(0), 4);
  sequence->extend(64);
  EXPECT_EQ(sequence->page_tables()[0].size(), 1u);
  sequence->extend(1);
  EXPECT_EQ(sequence->page_tables()[0].size(), 2u);
  sequence->extend(65);
  EXPECT_EQ(sequence->length(), 130);
  EXPECT_EQ(pool.free_pages(0), 1);
}

TEST(SequencePool, ReservationsKeepOthersOut) {
  SequencePool pool(layout({{.window = 0, .pages = 4}}, 3, 64));
  auto first = pool.admit(3 * 64);
  ASSERT_TRUE(first);
  auto second = pool.admit(65);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::exhausted);
  EXPECT_TRUE(pool.admit(64));
  *first = SequenceState();
  EXPECT_TRUE(pool.admit(4 * 64));
}

TEST(SequencePool, RefusesWhatNeverFits) {
  SequencePool pool(layout({{.window = 0, .pages = 4}}, 1, 64));
  EXPECT_EQ(pool.max_positions(), 256);
  EXPECT_EQ(pool.admit(257).error().code, ErrorCode::invalid);
  EXPECT_EQ(pool.admit(0).error().code, ErrorCode::invalid);
  EXPECT_EQ(pool.admit(std::numeric_limits<int>::max()).error().code, ErrorCode::invalid);
  auto only = pool.admit(1);
  ASSERT_TRUE(only);
  EXPECT_EQ(pool.admit(1).error().code, ErrorCode::exhausted);
}

TEST(SequencePool, AWindowNeedsItsOwnPagesOnly) {
  // 127 + 64 positions span at most four pages wherever they start.
  SequencePool pool(layout({{.window = 128, .pages = 4}}, 1, 64));
  EXPECT_EQ(pool.max_positions(), std::numeric_limits<int>::max());
  auto sequence = pool.admit(1000000);
  ASSERT_TRUE(sequence);
  for (int position = 0; position < 5000; position += 50) {
    sequence->trim(position);
    sequence->extend(50);
  }
  SequencePool small(layout({{.window = 128, .pages = 3}}, 1, 64));
  EXPECT_EQ(small.max_positions(), 192);
}

TEST(SequencePool, TrimKeepsExactlyWhatIsVisible) {
  SequencePool pool(layout({{.window = 65, .pages = 8}}, 1, 64));
  auto sequence = pool.admit(512);
  ASSERT_TRUE(sequence);
  sequence->extend(64);
  sequence->extend(64);
  sequence->trim(127);  // sees 63
  EXPECT_NE(sequence->page_tables()[0][0], -1);
  sequence->trim(128);  // sees 64 at the lowest
  EXPECT_EQ(sequence->page_tables()[0][0], -1);
  EXPECT_NE(sequence->page_tables()[0][1], -1);
  EXPECT_EQ(pool.free_pages(0), 7);
}

TEST(SequencePool, WithoutKvOnlySlotsCount) {
  SequencePool pool(layout({}, 2, 64));
  EXPECT_EQ(pool.max_positions(), std::numeric_limits<int>::max());
  auto a = pool.admit(1 << 30);
  auto b = pool.admit(1 << 30);
  ASSERT_TRUE(a);
  ASSERT_TRUE(b);
  EXPECT_NE(a->slot(), b->slot());
  EXPECT_FALSE(pool.admit(1));
  EXPECT_EQ(SequencePool(layout({}, 0, 64)).max_positions(), 0);
}

TEST(SequencePool, MovesKeepTheTables) {
  SequencePool pool(layout({{.window = 0, .pages = 4}}, 2, 64));
  auto admitted = pool.admit(128);
  ASSERT_TRUE(admitted);
  admitted->extend(100);
  SequenceState moved = *std::move(admitted);
  EXPECT_FALSE(admitted->valid());
  EXPECT_EQ(moved.page_tables()[0].size(), 2u);
  EXPECT_EQ(moved.length(), 100);
  moved = SequenceState();
  EXPECT_EQ(pool.free_pages(0), 4);
  EXPECT_EQ(pool.free_slots(), 2);
}

// A random life of a pool: admitted sequences can always grow, live pages cover what is visible,
// nobody shares a page, and in the end everything is back.
class PoolLife {
 public:
  explicit PoolLife(unsigned seed) : random_(seed), pool_(random_layout()) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      if (draw(0, 3) == 0)
        admit();
      else if (!live_.empty())
        grow_or_end();
      verify();
    }
    live_.clear();
    EXPECT_EQ(pool_.free_slots(), pool_.layout().slots);
    for (std::size_t g = 0; g < pool_.layout().groups.size(); ++g)
      EXPECT_EQ(pool_.free_pages(static_cast<int>(g)), pool_.layout().groups[g].pages);
    if (pool_.max_positions() > 0) {
      EXPECT_TRUE(pool_.admit(std::min(pool_.max_positions(), 1 << 20)));
    }
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  SequencePoolLayout random_layout() {
    std::vector<SequencePoolLayout::Group> groups;
    for (int g = draw(0, 3); g-- > 0;)
      groups.push_back({.window = draw(0, 1) == 0 ? 0 : draw(1, 300), .pages = draw(1, 40)});
    return layout(std::move(groups), draw(1, 6), draw(1, 200));
  }

  void admit() {
    const int most = std::min(pool_.max_positions(), 3000);
    auto sequence = pool_.admit(draw(1, most));
    if (sequence) live_.push_back(*std::move(sequence));
  }

  void grow_or_end() {
    const auto index = static_cast<std::size_t>(draw(0, static_cast<int>(live_.size()) - 1));
    SequenceState& sequence = live_[index];
    const int room = sequence.capacity() - sequence.length();
    if (room == 0 || draw(0, 30) == 0) {
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
      return;
    }
    sequence.trim(sequence.length());
    sequence.extend(draw(1, std::min(room, pool_.layout().max_chunk)));
  }

  void verify() {
    std::set<int> slots;
    for (const SequenceState& sequence : live_)
      ASSERT_TRUE(slots.insert(sequence.slot()).second) << "a slot is shared";
    for (std::size_t g = 0; g < pool_.layout().groups.size(); ++g) verify_group(g);
  }

  void verify_group(std::size_t g) {
    const SequencePoolLayout::Group& group = pool_.layout().groups[g];
    std::set<int> owned;
    for (const SequenceState& sequence : live_) {
      const auto table = sequence.page_tables()[g];
      ASSERT_EQ(table.size(), static_cast<std::size_t>((sequence.length() + 63) / 64));
      const int oldest = group.window == 0 ? 0 : std::max(0, sequence.length() - group.window + 1);
      for (std::size_t p = 0; p < table.size(); ++p) {
        if (static_cast<int>(p) >= oldest / 64) {
          ASSERT_NE(table[p], -1) << "a visible page is missing";
        }
        if (table[p] == -1) continue;
        ASSERT_TRUE(table[p] >= 0 && table[p] < group.pages);
        ASSERT_TRUE(owned.insert(table[p]).second) << "a page is shared";
      }
    }
    ASSERT_EQ(static_cast<int>(owned.size()) + pool_.free_pages(static_cast<int>(g)), group.pages);
  }

  std::mt19937 random_;
  SequencePool pool_;
  std::vector<SequenceState> live_;
};

TEST(SequencePool, RandomLives) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    PoolLife(seed).run(400);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tessera
