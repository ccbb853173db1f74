// Ending a session whose worker reads nothing any more.
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "worker/channel_pair.h"
#include "worker/scale_handler.h"
#include "worker/session.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

TEST(SessionEnd, DoesNotWaitForAJobThatIsStuckInItsSocket) {
  ChannelPair pair = make_pair({.kind = AttachKind::stream});
  Session session(std::move(pair.client), scale_hello(), HelloAck{.credits = 2});
  const std::vector<std::byte> body(std::size_t{16} << 20);  // no socket holds as much
  auto stuck = std::async(std::launch::async, [&] {
    const std::array<std::span<const std::byte>, 1> parts = {body};
    return session.submit({.op = Op::forward_layers}, Parts(parts), {600s, 600s}).ok();
  });
  ASSERT_EQ(stuck.wait_for(100ms), std::future_status::timeout);
  EXPECT_FALSE(session.say_bye().ok());
  ASSERT_EQ(stuck.wait_for(60s), std::future_status::ready);
  EXPECT_FALSE(stuck.get());
  EXPECT_TRUE(session.closed());
}

}  // namespace
}  // namespace tessera::worker
