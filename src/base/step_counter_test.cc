#include "base/step_counter.h"

#include <gtest/gtest.h>

#include <thread>

namespace tessera {
namespace {

using std::chrono::microseconds;

TEST(StepCounter, WaitsForTheNumber) {
  StepCounter counter;
  counter.wait_for(0, microseconds(0));
  int value = 0;
  std::thread other([&] {
    for (int i = 1; i <= 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      value = i;
      counter.advance();
    }
  });
  counter.wait_for(3, microseconds(0));
  EXPECT_EQ(value, 3);
  other.join();
}

// Two threads hand a number back and forth, sleeping as often as spinning.
TEST(StepCounter, NoHandOverIsLost) {
  for (const microseconds spin : {microseconds(0), microseconds(5), microseconds(1000)}) {
    StepCounter there, back;
    constexpr std::uint32_t kRounds = 3000;
    std::uint32_t value = 0;
    std::thread other([&] {
      for (std::uint32_t i = 1; i <= kRounds; ++i) {
        there.wait_for(i, spin);
        EXPECT_EQ(value, 2 * i - 1);
        ++value;
        back.advance();
      }
    });
    for (std::uint32_t i = 1; i <= kRounds; ++i) {
      ++value;
      there.advance();
      back.wait_for(i, spin);
      EXPECT_EQ(value, 2 * i);
    }
    other.join();
  }
}

}  // namespace
}  // namespace tessera
