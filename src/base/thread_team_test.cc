#include "base/thread_team.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tessera {
namespace {

TEST(ThreadTeam, CoversEveryPieceOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadTeam team({.threads = threads, .spin = std::chrono::microseconds(10)});
    ASSERT_EQ(team.size(), threads);
    for (int count : {0, 1, 7, 64, 1001}) {
      for (int grain : {1, 3, 64}) {
        std::vector<int> hits(static_cast<std::size_t>(count), 0);
        team.run([&](TeamMember& member) {
          member.for_each(count, grain, [&](int begin, int end) {
            for (int i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
          });
        });
        for (int hit : hits) ASSERT_EQ(hit, 1);
      }
    }
  }
}

TEST(ThreadTeam, CoversEveryListOnceAndItsOwnInOrder) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadTeam team({.threads = threads, .spin = std::chrono::microseconds(10)});
    for (int count : {0, 1, 7, 64}) {
      const auto n = static_cast<std::size_t>(threads * count);
      std::vector<int> first(n), second(n);
      team.run([&](TeamMember& member) {
        int last = -1;
        member.for_each_own(0, count, [&](int owner, int i) {
          ++first[static_cast<std::size_t>(owner * count + i)];
          if (owner != member.index()) return;
          EXPECT_GT(i, last);
          last = i;
        });
        member.for_each_own(1, count, [&](int owner, int i) {
          ++second[static_cast<std::size_t>(owner * count + i)];
        });
      });
      EXPECT_EQ(first, std::vector<int>(n, 1));
      EXPECT_EQ(second, std::vector<int>(n, 1));
    }
  }
}

TEST(ThreadTeam, BarrierSeparatesPhases) {
  ThreadTeam team({.threads = 4});
  std::vector<int> first(256), second(256);
  for (int round = 0; round < 200; ++round) {
    team.run([&](TeamMember& member) {
      member.for_each(256, 8, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) first[static_cast<std::size_t>(i)] = round + i;
      });
      member.for_each(256, 8, [&](int begin, int end) {
        for (int i = begin; i < end; ++i)
          second[static_cast<std::size_t>(i)] = first[static_cast<std::size_t>(255 - i)];
      });
    });
    for (int i = 0; i < 256; ++i) ASSERT_EQ(second[static_cast<std::size_t>(i)], round + 255 - i);
  }
}

TEST(ThreadTeam, WakesAfterParking) {
  ThreadTeam team({.threads = 3, .spin = std::chrono::microseconds(1)});
  std::atomic<int> members{0};
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    team.run([&](TeamMember&) { members.fetch_add(1); });
  }
  EXPECT_EQ(members.load(), 60);
}

// Two teams that take turns: who rests sleeps at once, however long it would spin, and wakes.
TEST(ThreadTeam, RestsWhereItWouldSpin) {
  ThreadTeam one({.threads = 3, .spin = std::chrono::seconds(10)});
  ThreadTeam other({.threads = 2, .spin = std::chrono::seconds(10)});
  std::atomic<int> members{0};
  for (int round = 0; round < 200; ++round) {
    other.rest();
    one.run([&](TeamMember&) { members.fetch_add(1); });
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    one.rest();
    other.run([&](TeamMember&) { members.fetch_add(1); });
  }
  EXPECT_EQ(members.load(), 1000);
}

}  // namespace
}  // namespace tessera
