// serve(): what a worker answers, and clients that do not keep to the rules.
#include "worker/serve.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "worker/channel_pair.h"
#include "worker/scale_handler.h"
#include "worker/session.h"
#include "worker/socket_io.h"
#include "worker/stream_channel.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

// A worker that does not wait for ever for a client that hangs.
class GivingUp : public testing::TestWithParam<AttachKind> {
 protected:
  static constexpr auto kSilence = 200ms;
  void SetUp() override {
    ended_ = false;
    pair_ = make_pair({.kind = GetParam()});
    worker_ = std::thread([this] {
      WorkerOffer offer = scale_offer();
      offer.client_silence = kSilence;
      end_ = serve(*pair_.worker, offer, handler_, stats_);
      ended_ = true;
    });
    quiet_since_ = Clock::now();
    ASSERT_TRUE(client_handshake(*pair_.client, scale_hello(), after(60s)).ok());
  }
  void TearDown() override {
    pair_.client->close();
    worker_.join();
  }
  // Beats, and a job behind them, none of them later than the worker bears; false where this
  // machine made one late.
  bool keeps_time() {
    const ScaleJob job;
    const auto parts = job.parts();
    Deadline last = quiet_since_;
    for (const Deadline until = after(3 * kSilence);;) {
      const bool enough = Clock::now() > until;
      const Deadline begin = Clock::now();
      const Status sent = enough ? pair_.client->send(job.header, Parts(parts), after(60s))
                                 : pair_.client->send({.op = Op::ping}, after(60s));
      if (Clock::now() - last > kSilence) return false;
      EXPECT_TRUE(sent.ok());
      if (enough || !sent) return true;
      last = begin;
      std::this_thread::sleep_for(kSilence / 10);
    }
  }

  ChannelPair pair_;
  Deadline quiet_since_;
  ScaleHandler handler_;
  Stats stats_;
  Result<ServeEnd> end_ = ServeEnd::bye;
  std::atomic<bool> ended_{false};
  std::thread worker_;
};

TEST_P(GivingUp, OneThatSaysNothing) {
  const Deadline begin = Clock::now();
  while (!ended_ && Clock::now() < begin + 60s) std::this_thread::sleep_for(5ms);
  ASSERT_TRUE(ended_);
  EXPECT_GE(Clock::now() - begin, kSilence - 50ms);
  ASSERT_TRUE(end_.ok());
  EXPECT_EQ(*end_, ServeEnd::silent);
}

TEST_P(GivingUp, NotOneThatBeatsNorOneWhoseJobTakesLong) {
  handler_.set_before_job([](const FrameHeader&) { std::this_thread::sleep_for(2 * kSilence); });
  while (!keeps_time()) {
    TearDown();
    SetUp();
  }
  Frame frame;
  Result<bool> came = true;
  do {
    came = pair_.client->receive(frame, after(60s));
  } while (came.ok() && *came && frame.header.op == Op::pong);
  ASSERT_TRUE(came.ok() && *came);
  EXPECT_EQ(frame.header.op, Op::result);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GivingUp, testing::Values(AttachKind::stream, AttachKind::rings),
                         [](const auto& info) {
                           return info.param == AttachKind::stream ? "stream" : "rings";
                         });

// How it ends with a client that sends a frame byte by byte, a half of it or all; nothing where
// this machine made a byte late.
std::optional<ServeEnd> end_of_a_slow_frame(std::chrono::milliseconds silence, bool half) {
  auto [mine, theirs] = socket_pair();
  Result<ServeEnd> end = ServeEnd::bye;
  std::thread worker([&end, silence, fd = std::move(theirs)]() mutable {
    const auto channel = *StreamChannel::adopt(std::move(fd), "slow");
    WorkerOffer offer = scale_offer();
    offer.client_silence = silence;
    ScaleHandler handler;
    Stats stats;
    end = serve(*channel, offer, handler, stats);
  });
  const int fd = mine.get();
  const auto channel = *StreamChannel::adopt(std::move(mine), "slow");
  Deadline last = Clock::now();
  EXPECT_TRUE(client_handshake(*channel, scale_hello(), after(60s)).ok());
  std::array<std::byte, kHeaderBytes> ping;
  encode_header({.version = kVersionMax, .op = Op::ping}, ping);
  bool in_time = true;
  for (std::size_t i = 0; in_time && i < (half ? ping.size() / 2 : ping.size()); ++i) {
    const Deadline begin = Clock::now();
    const bool sent = ::send(fd, &ping[i], 1, MSG_NOSIGNAL) == 1;
    in_time = Clock::now() - last <= silence;
    EXPECT_TRUE(sent || !in_time) << i;
    last = begin;
    std::this_thread::sleep_for(silence / 10);
  }
  Frame frame;
  const Result<bool> came = channel->receive(frame, after(60s));
  EXPECT_TRUE(came.ok() == !half || !in_time);
  channel->close();
  worker.join();
  EXPECT_TRUE(end.ok());
  return in_time ? std::optional(*end) : std::nullopt;
}

// A job that comes slowly comes all the same, and one that stops in the middle does not.
TEST(GivingUpOfStreams, CountsTheBytesOfAFrame) {
  for (const bool half : {false, true}) {
    std::optional<ServeEnd> end;
    while (!end) end = end_of_a_slow_frame(200ms, half);
    EXPECT_EQ(*end, half ? ServeEnd::silent : ServeEnd::peer_gone);
  }
}

// Frames that a Session would not send.
TEST(Serve, StatsUnknownOpsAndTooManyJobs) {
  ChannelPair pair = make_pair({});
  Stats stats;
  ScaleHandler handler;
  Result<ServeEnd> end = ServeEnd::bye;
  std::thread worker([&] { end = serve(*pair.worker, scale_offer(), handler, stats); });
  Channel& client = *pair.client;
  ASSERT_TRUE(client_handshake(client, scale_hello(), after(60s)).ok());
  Frame frame;
  const auto answer = [&](const FrameHeader& header) {
    EXPECT_TRUE(client.send(header, after(60s)).ok());
    EXPECT_TRUE(*client.receive(frame, after(60s)));
    EXPECT_EQ(frame.header.sequence, header.sequence);
    return frame.header.op;
  };
  EXPECT_EQ(answer({.op = Op::stats, .sequence = 4}), Op::stats);
  EXPECT_EQ(decode_stats(frame.body())->jobs, 0u);
  EXPECT_EQ(answer({.op = static_cast<Op>(999), .sequence = 5}), Op::error);
  EXPECT_EQ(decode_error(frame.body())->code, WireError::unknown_op);
  std::promise<void> go;
  std::shared_future<void> future = go.get_future().share();
  handler.set_before_job([future](const FrameHeader&) { future.wait(); });
  ScaleJob job;
  for (job.header.sequence = 10; job.header.sequence < 17; ++job.header.sequence) {
    const auto parts = job.parts();
    ASSERT_TRUE(client.send(job.header, Parts(parts), after(60s)).ok());
  }
  go.set_value();
  int results = 0, refused = 0;
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(*client.receive(frame, after(60s)));
    (frame.header.op == Op::result ? results : refused) += 1;
  }
  EXPECT_GE(refused, 2);
  EXPECT_GE(results, 4);
  ASSERT_TRUE(client.send({.op = Op::bye}, after(60s)).ok());
  worker.join();
  EXPECT_EQ(*end, ServeEnd::bye);
}

// A worker over a socket, and jobs of a megabyte, several times what the socket holds.
class Streams : public testing::Test {
 protected:
  void SetUp() override {
    hello_.max_rows = kRows;
    ChannelPair pair = make_pair({.kind = AttachKind::stream});
    worker_ = std::thread([this, channel = std::shared_ptr<Channel>(std::move(pair.worker))] {
      (void)serve(*channel, scale_offer(), handler_, stats_);
    });
    client_ = std::move(pair.client);
    const Result<HandshakeReply> reply = client_handshake(*client_, hello_, after(60s));
    ASSERT_TRUE(reply.ok());
    ack_ = std::get<HelloAck>(*reply);
    job_.header.rows = kRows;
    job_.rows.resize(std::size_t{kRows} * 64 * 4);
    parts_ = job_.parts();
  }
  void TearDown() override {
    if (client_) client_->close();
    worker_.join();
  }

  static constexpr int kRows = 4096;
  Hello hello_ = scale_hello();
  HelloAck ack_;
  ScaleHandler handler_;
  Stats stats_;
  std::unique_ptr<Channel> client_;
  std::thread worker_;
  ScaleJob job_;
  decltype(job_.parts()) parts_;
};

// A job and a result on their way to each other: the worker takes the job while it sends.
TEST_F(Streams, LargeJobsAndResultsCross) {
  Session session(std::move(client_), hello_, ack_);
  std::vector<Ticket> tickets;
  for (int i = 0; i < session.agreed().credits; ++i) {
    const Result<Ticket> ticket = session.submit(job_.header, Parts(parts_), {60s, 60s});
    ASSERT_TRUE(ticket.ok()) << ticket.error().message;
    tickets.push_back(*ticket);
  }
  ASSERT_GE(tickets.size(), 2u);
  JobReply answer;
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(*session.wait(ticket, answer, after(60s)));
    EXPECT_TRUE(all_nines(answer.body.first(64 * 4)));
  }
  session.close();
}

// A client that reads nothing and sends more jobs than it has credits for: no more are taken into
// memory while an answer has no room.
TEST_F(Streams, NoMoreJobsThanCreditsAreReadAhead) {
  const int credits = ack_.credits;
  ASSERT_TRUE(client_->send(job_.header, Parts(parts_), after(60s)).ok());
  // Its result is on the way.
  ASSERT_TRUE(wait_for(client_->descriptor(), POLLIN, after(60s)).ready);
  int taken = 1;
  while (taken < 3 * credits && client_->send(job_.header, Parts(parts_), after(3s)).ok()) ++taken;
  // The socket itself holds less than one.
  EXPECT_GE(taken, credits);
  EXPECT_LE(taken, credits + 1);
  client_->close();
}

}  // namespace
}  // namespace tessera::worker
