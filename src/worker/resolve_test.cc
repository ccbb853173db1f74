#include "worker/resolve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

Result<std::vector<Endpoint>> look_up(const char* address, Deadline deadline,
                                      Interrupter* interrupter = nullptr) {
  return resolve(*Address::parse(address), EndpointUse::connect, deadline, interrupter);
}

TEST(Resolve, NumbersAndPathsNeedNoTime) {
  EXPECT_EQ(look_up("tcp:127.0.0.1:7000", Deadline::min())->at(0).storage.ss_family, AF_INET);
  EXPECT_EQ(look_up("tcp:[::1]:7000", Deadline::min())->at(0).storage.ss_family, AF_INET6);
  EXPECT_EQ(look_up("unix:/run/w.sock", Deadline::min())->at(0).storage.ss_family, AF_UNIX);
}

TEST(Resolve, Names) {
  EXPECT_TRUE(look_up("tcp:localhost:7000", after(60s)).ok());
}

// It may be known later.
TEST(Resolve, ANameThatNobodyKnowsIsUnavailable) {
  const auto found = look_up("tcp:no-such-host.invalid:7000", after(60s));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::unavailable) << found.error().message;
}

TEST(Resolve, OnePlaceHasManySpellings) {
  const auto same = [](const char* a, const char* b) {
    return same_place(*Address::parse(a), *Address::parse(b), after(60s));
  };
  EXPECT_TRUE(same("unix:/nowhere/w.sock", "unix:/nowhere/./w.sock"));
  EXPECT_TRUE(same("unix:/nowhere/a/../w.sock", "unix://nowhere/w.sock"));
  EXPECT_FALSE(same("unix:/nowhere/w.sock", "unix:/nowhere/v.sock"));
  EXPECT_TRUE(same("tcp:localhost:7000", "tcp:127.0.0.1:7000"));
  EXPECT_TRUE(same("tcp:127.0.0.1:7000", "tcp:127.1:07000"));
  EXPECT_FALSE(same("tcp:localhost:7000", "tcp:127.0.0.1:7001"));
  EXPECT_FALSE(same("tcp:127.0.0.1:7000", "unix:/nowhere/w.sock"));
  EXPECT_FALSE(same("tcp:no-such-host.invalid:7000", "tcp:127.0.0.1:7000"));
  EXPECT_TRUE(same("tcp:no-such-host.invalid:7000", "tcp:no-such-host.invalid:7000"));
}

// However long the system takes for a name that nobody has.
TEST(Resolve, IsNotWaitedForPastTheDeadline) {
  Clock::duration best = Clock::duration::max();  // since the machine may be busy
  for (int i = 0; i < 10 && best >= 2s; ++i) {
    const Deadline begin = Clock::now();
    EXPECT_FALSE(look_up("tcp:no-such-host.invalid:7000", after(50ms)).ok());
    best = std::min(best, Clock::now() - begin);
  }
  EXPECT_LT(best, 2s);
}

TEST(Resolve, IsInterrupted) {
  Clock::duration best = Clock::duration::max();
  for (int i = 0; i < 10 && best >= 2s; ++i) {
    Interrupter interrupter;
    std::thread other([&] {
      std::this_thread::sleep_for(20ms);
      interrupter.interrupt();
    });
    const Deadline begin = Clock::now();
    EXPECT_FALSE(look_up("tcp:no-such-host.invalid:7000", after(1h), &interrupter).ok());
    best = std::min(best, Clock::now() - begin);
    other.join();
  }
  EXPECT_LT(best, 2s);
}

}  // namespace
}  // namespace tessera::worker
