// What holds for both kinds of channel.
#include "worker/transport.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "worker/channel_pair.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

constexpr WireLimits kTransportLimits{.n_layer = 4,
                                      .n_embd = 256,
                                      .n_expert = 16,
                                      .max_rows = 1024,
                                      .max_pairs = 4096,
                                      .in_types = kFloatTypes,
                                      .out_types = kFloatTypes};

class Transport : public testing::TestWithParam<AttachKind> {
 protected:
  void SetUp() override {
    pair_ = make_pair(
        {.kind = GetParam(), .to_worker_bytes = 3 << 20, .to_client_bytes = (1 << 20) + 64});
    pair_.client->set_limits(kTransportLimits);
    pair_.worker->set_limits(kTransportLimits);
  }
  ChannelPair pair_;
  Frame frame_;
};

FrameHeader result_of(std::uint64_t sequence, std::uint32_t rows) {
  return {.op = Op::result,
          .sequence = sequence,
          .rows = rows,
          .items = 256,
          .out_type = WireType::f32};
}

std::vector<std::byte> pattern(std::uint64_t seed, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(seed * 31 + i * 7);
  return out;
}

TEST(Announcements, CountOnceForEachJobOrResult) {
  Announcement announcement;
  for (const Op work : {Op::compute_experts, Op::forward_layers, Op::result}) {
    announcement.saw(Op::near);
    EXPECT_TRUE(announcement.pending());
    announcement.used();
    EXPECT_FALSE(announcement.pending());
    for (const Op op : {Op::near, Op::ping, Op::near, Op::cancel, Op::near}) {
      announcement.saw(op);
      EXPECT_FALSE(announcement.pending()) << op_name(op);
    }
    announcement.saw(work);
    EXPECT_FALSE(announcement.pending());
  }
}

// The wait that is awake ends as the one that sleeps does, whatever ends it.
TEST_P(Transport, AwaitsWhatIsAnnounced) {
  ASSERT_TRUE(pair_.worker->send({.op = Op::near, .sequence = 1}, after(60s)).ok());
  ASSERT_TRUE(*pair_.client->receive(frame_, after(60s)));
  EXPECT_EQ(frame_.header.op, Op::near);
  EXPECT_FALSE(*pair_.client->receive(frame_, after(1ms))) << "the deadline comes first";
  const std::vector<std::byte> body = pattern(1, 256 * 4);
  for (std::uint64_t i = 0; i < 20; ++i) {
    std::thread other([&, pause = std::chrono::microseconds(500 * i)] {
      std::this_thread::sleep_for(pause);  // less and more than it is awake
      EXPECT_TRUE(pair_.worker->send(result_of(i, 1), body, after(60s)).ok());
      EXPECT_TRUE(pair_.worker->send({.op = Op::near, .sequence = i + 1}, after(60s)).ok());
    });
    ASSERT_TRUE(*pair_.client->receive(frame_, after(60s)));
    EXPECT_EQ(frame_.header.sequence, i);
    EXPECT_TRUE(std::equal(body.begin(), body.end(), frame_.body().begin(), frame_.body().end()));
    ASSERT_TRUE(*pair_.client->receive(frame_, after(60s)));
    EXPECT_EQ(frame_.header.op, Op::near);
    other.join();
  }
  std::thread other([&] { pair_.worker.reset(); });
  const Result<bool> came = pair_.client->receive(frame_, after(60s));
  other.join();
  ASSERT_FALSE(came.ok());
  EXPECT_EQ(came.error().code, ErrorCode::unavailable) << came.error().message;
}

TEST_P(Transport, CarriesFramesBothWays) {
  ASSERT_TRUE(pair_.client->send({.op = Op::ping, .sequence = 5}, after(60s)).ok());
  ASSERT_TRUE(*pair_.worker->receive(frame_, after(60s)));
  EXPECT_EQ(frame_.header.op, Op::ping);
  EXPECT_EQ(frame_.header.sequence, 5u);
  EXPECT_TRUE(frame_.body().empty());
  const std::vector<std::byte> body = pattern(1, 2 * 256 * 4);
  const std::span<const std::byte> whole(body);
  const std::span<const std::byte> parts[] = {whole.first(100), {}, whole.subspan(100)};
  ASSERT_TRUE(pair_.worker->send(result_of(5, 2), Parts(parts), after(60s)).ok());
  ASSERT_TRUE(*pair_.client->receive(frame_, after(60s)));
  EXPECT_TRUE(std::equal(body.begin(), body.end(), frame_.body().begin(), frame_.body().end()));
}

TEST_P(Transport, DeadlinesPass) {
  const Deadline start = Clock::now();
  EXPECT_FALSE(*pair_.client->receive(frame_, after(20ms)));
  EXPECT_GE(Clock::now() - start, 20ms);
  EXPECT_FALSE(*pair_.client->receive(frame_, Deadline::min()));
  EXPECT_FALSE(pair_.client->closed());
}

// Sizes of every kind, so that bodies wrap in the arena and split in the socket.
TEST_P(Transport, StreamsManySizesBothWaysAtOnce) {
  constexpr int kFrames = 1500;
  const auto sender = [](Channel& channel, unsigned seed) {
    std::mt19937 random(seed);
    for (std::uint64_t i = 0; i < kFrames; ++i) {
      const std::uint32_t rows = i % 50 == 0 ? 700 : 1 + static_cast<std::uint32_t>(random() % 20);
      ASSERT_TRUE(channel.send(result_of(i, rows), pattern(i, rows * 1024), after(60s)).ok());
    }
  };
  const auto receiver = [](Channel& channel) {
    Frame frame;
    for (std::uint64_t i = 0; i < kFrames; ++i) {
      const Result<bool> came = channel.receive(frame, after(60s));
      ASSERT_TRUE(came.ok() && *came);
      ASSERT_EQ(frame.header.sequence, i);
      const std::vector<std::byte> want = pattern(i, frame.header.rows * 1024);
      ASSERT_TRUE(std::equal(want.begin(), want.end(), frame.body().begin(), frame.body().end()));
    }
  };
  std::thread threads[] = {std::thread([&] { sender(*pair_.client, 1); }),
                           std::thread([&] { sender(*pair_.worker, 2); }),
                           std::thread([&] { receiver(*pair_.client); }),
                           std::thread([&] { receiver(*pair_.worker); })};
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Transport, WakesASleeper) {
  for (int i = 0; i < 20; ++i) {
    std::thread late([&] {
      std::this_thread::sleep_for(3ms);
      ASSERT_TRUE(pair_.client->send({.op = Op::ping}, after(60s)).ok());
    });
    const Result<bool> came = pair_.worker->receive(frame_, after(60s));
    late.join();
    ASSERT_TRUE(came.ok() && *came);
  }
}

TEST_P(Transport, CloseWakesBothEnds) {
  std::thread waiting([&] {
    Frame frame;
    EXPECT_EQ(pair_.client->receive(frame, after(10s)).error().code, ErrorCode::unavailable);
  });
  std::this_thread::sleep_for(5ms);
  pair_.client->close();
  pair_.client->close();
  waiting.join();
  EXPECT_EQ(pair_.worker->receive(frame_, after(10s)).error().code, ErrorCode::unavailable);
  EXPECT_TRUE(pair_.worker->closed());
  EXPECT_EQ(pair_.worker->send({.op = Op::ping}, after(1s)).error().code, ErrorCode::unavailable);
}

TEST_P(Transport, WhatWasSentBeforeTheEndArrives) {
  ASSERT_TRUE(pair_.worker->send({.op = Op::bye, .sequence = 3}, after(60s)).ok());
  pair_.worker.reset();
  ASSERT_TRUE(*pair_.client->receive(frame_, after(60s)));
  EXPECT_EQ(frame_.header.op, Op::bye);
  EXPECT_EQ(pair_.client->receive(frame_, after(1s)).error().code, ErrorCode::unavailable);
}

TEST_P(Transport, SeesTheEndOfThePeerWithoutWaiting) {
  pair_.worker.reset();
  EXPECT_EQ(pair_.client->receive(frame_, Deadline::min()).error().code, ErrorCode::unavailable);
}

TEST_P(Transport, RefusesWhatWasNotAgreed) {
  pair_.worker->set_limits({});
  ASSERT_TRUE(pair_.client->send(result_of(1, 1), pattern(1, 1024), after(60s)).ok());
  const Result<bool> came = pair_.worker->receive(frame_, after(60s));
  ASSERT_FALSE(came.ok());
  EXPECT_EQ(came.error().code, ErrorCode::invalid);
  EXPECT_TRUE(pair_.worker->closed());
}

TEST_P(Transport, AFullConnectionIsNotAnEnd) {
  const std::vector<std::byte> body = pattern(1, 100 * 1024);
  Status status;
  int sent = 0;
  for (; sent < 1000 && status.ok(); ++sent)
    status = pair_.client->send(result_of(1, 100), body, Deadline::min());
  ASSERT_FALSE(status.ok());
  if (GetParam() == AttachKind::stream) return;  // a frame half in the socket ends the channel
  EXPECT_EQ(status.error().code, ErrorCode::exhausted);
  for (int i = 1; i < sent; ++i) ASSERT_TRUE(*pair_.worker->receive(frame_, after(60s)));
  EXPECT_FALSE(*pair_.worker->receive(frame_, Deadline::min()));
  EXPECT_TRUE(pair_.client->send(result_of(1, 100), body, Deadline::min()).ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Transport, testing::Values(AttachKind::stream, AttachKind::rings),
                         [](const auto& info) {
                           return info.param == AttachKind::stream ? "stream" : "rings";
                         });

}  // namespace
}  // namespace tessera::worker
