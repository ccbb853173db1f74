#include "worker/site.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "worker/connect.h"
#include "worker/interrupter.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

// More than a worker takes at most, and so nothing that a machine of any size makes.
const AttachOptions kHuge{.to_worker_bytes = std::uint64_t{5} << 30};

class Transports : public ::testing::Test {
 protected:
  // What a start at a worker that takes `accepts` comes to.
  Result<StartedWorker> start(TransportChoice transport, const AttachOptions& attach,
                              const AcceptOptions& accepts = {}) {
    Listener listener = *Listener::open(address_);
    std::unique_ptr<Channel> worker;
    std::atomic<bool> over{false};
    std::thread accepting([&] {
      while (!over && worker == nullptr)
        if (auto came = listener.accept(accepts, after(50ms))) worker = *std::move(came);
    });
    const Starter starter = site_starter(
        {.name = "worker:0", .address = address_, .transport = transport}, attach, metrics_);
    Interrupter interrupter;
    Result<StartedWorker> started = starter(after(60s), interrupter);
    over = true;
    accepting.join();
    return started;
  }
  std::uint64_t fallbacks(const char* reason) {
    return metrics_
        .counter("tessera_worker_transport_fallbacks_total", "",
                 {{"worker", "worker:0"}, {"reason", reason}})
        .value();
  }

  const Address address_ =
      *Address::parse(fmt::format("unix:{}site_{}", ::testing::TempDir(), ::getpid()));
  MetricsRegistry metrics_;
};

TEST_F(Transports, AutomaticSharesMemoryWhereItCan) {
  const auto started = start(TransportChoice::automatic, {});
  ASSERT_TRUE(started) << started.error().message;
  EXPECT_EQ(started->channel->describe(), "shared rings");
  EXPECT_EQ(fallbacks("memory") + fallbacks("refused"), 0u);
}

TEST_F(Transports, AutomaticTakesASocketWhereThereIsNoMemory) {
  const auto started = start(TransportChoice::automatic, kHuge);
  ASSERT_TRUE(started) << started.error().message;
  EXPECT_EQ(started->channel->describe(), "unix stream");
  EXPECT_EQ(fallbacks("memory"), 1u);
}

TEST_F(Transports, AutomaticTakesASocketWhereTheWorkerTakesLess) {
  const auto started = start(TransportChoice::automatic, {}, {.max_arena_bytes = 4096});
  ASSERT_TRUE(started) << started.error().message;
  ASSERT_NE(started->channel, nullptr);
  EXPECT_EQ(started->channel->describe(), "unix stream");
  EXPECT_EQ(fallbacks("refused"), 1u);
}

TEST_F(Transports, SharedIsStrict) {
  const auto huge = start(TransportChoice::shared, kHuge);
  ASSERT_FALSE(huge);
  EXPECT_NE(huge.error().message.find("the most is"), std::string::npos) << huge.error().message;
  const auto refused = start(TransportChoice::shared, {}, {.max_arena_bytes = 4096});
  ASSERT_TRUE(refused) << refused.error().message;
  EXPECT_EQ(refused->refused->reason, RefuseReason::limits);
  EXPECT_EQ(fallbacks("memory") + fallbacks("refused"), 0u);
}

}  // namespace
}  // namespace tessera::worker
