#include "base/fixed_queue.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tessera {
namespace {

TEST(FixedQueue, IsFirstInFirstOut) {
  FixedQueue<int> queue(3);
  int in = 0, out = 0;
  for (int round = 0; round < 7; ++round) {
    while (!queue.full()) queue.push() = in++;
    EXPECT_EQ(queue.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(queue[i], out + static_cast<int>(i));
    for (int n = 0; n <= round % 3; ++n, queue.pop()) EXPECT_EQ(queue.front(), out++);
  }
  queue.clear();
  EXPECT_TRUE(queue.empty());
}

TEST(FixedQueue, WithoutRoomIsFullAndEmpty) {
  const FixedQueue<int> none;
  EXPECT_TRUE(none.full());
  EXPECT_TRUE(none.empty());
}

TEST(FixedQueue, KeepsTheMemoryOfWhatWasPopped) {
  FixedQueue<std::string> queue(2);
  queue.push().assign(100, 'x');
  const char* memory = queue.front().data();
  queue.pop();
  queue.push() = "";
  queue.pop();
  EXPECT_EQ(queue.next().assign(100, 'y').data(), memory);
}

// A queue that never runs empty does not spread memory over all its places.
TEST(FixedQueue, UsesNoMorePlacesThanItHolds) {
  FixedQueue<int> queue(8);
  std::set<const int*> places;
  places.insert(&queue.push());
  for (int i = 0; i < 100; ++i) {
    places.insert(&queue.push());
    queue.pop();
  }
  EXPECT_EQ(places.size(), 2u);
}

}  // namespace
}  // namespace tessera
