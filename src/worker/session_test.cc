// Session against serve(), in one process.
#include "worker/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "worker/channel_pair.h"
#include "worker/scale_handler.h"
#include "worker/stream_channel.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

class Serving : public testing::TestWithParam<AttachKind> {
 protected:
  void SetUp() override {
    ChannelPair pair = make_pair({.kind = GetParam()});
    worker_ = std::thread([this, channel = std::shared_ptr<Channel>(std::move(pair.worker))] {
      end_ = serve(*channel, scale_offer(), handler_, stats_);
    });
    const Result<HandshakeReply> reply = client_handshake(*pair.client, scale_hello(), after(5s));
    ASSERT_TRUE(reply.ok());
    session_ = std::make_unique<Session>(std::move(pair.client), scale_hello(),
                                         std::get<HelloAck>(*reply));
  }
  void TearDown() override {
    session_->close();
    if (worker_.joinable()) worker_.join();
  }
  Result<Ticket> submit(std::uint32_t deadline_us = 0) {
    job_.header.deadline_us = deadline_us;
    return session_->submit(job_.header, job_.parts());
  }
  // Makes the worker wait inside its next job until the promise is kept.
  std::promise<void> hold_worker() {
    std::promise<void> promise;
    std::shared_future<void> future = promise.get_future().share();
    handler_.set_before_job([future](const FrameHeader&) { future.wait(); });
    return promise;
  }

  ScaleHandler handler_;
  ScaleJob job_;
  Stats stats_;
  Result<ServeEnd> end_ = ServeEnd::bye;
  std::thread worker_;
  std::unique_ptr<Session> session_;
  JobReply reply_;
};

TEST_P(Serving, ComputesJobs) {
  for (int i = 0; i < 200; ++i) {
    const Result<Ticket> ticket = submit();
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(*session_->wait(*ticket, reply_, after(5s)));
    ASSERT_FALSE(reply_.error.has_value());
    ASSERT_TRUE(all_nines(reply_.body));
  }
  ASSERT_TRUE(session_->say_bye().ok());
  worker_.join();
  EXPECT_EQ(*end_, ServeEnd::bye);
  EXPECT_EQ(stats_.jobs, 200u);
  EXPECT_EQ(stats_.pairs, 400u);
}

TEST_P(Serving, CreditsBoundWhatIsUnderWay) {
  std::promise<void> go = hold_worker();
  std::vector<Ticket> tickets;
  for (int i = 0; i < session_->agreed().credits; ++i) tickets.push_back(*submit());
  const Result<Ticket> more = submit();
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, ErrorCode::exhausted);
  go.set_value();
  for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
    ASSERT_TRUE(*session_->wait(*ticket, reply_, after(5s)));
    EXPECT_TRUE(all_nines(reply_.body));
  }
  EXPECT_TRUE(submit().ok());
}

TEST_P(Serving, AbandonedJobsGiveTheirCreditBackLater) {
  std::promise<void> go = hold_worker();
  const Ticket ticket = *submit();
  EXPECT_FALSE(*session_->wait(ticket, reply_, after(10ms)));
  session_->abandon(ticket);
  session_->abandon(ticket);
  EXPECT_EQ(session_->health().abandoned, 1);
  EXPECT_TRUE(session_->health().oldest_job.has_value());
  go.set_value();
  const Deadline limit = after(5s);
  while (session_->health().abandoned > 0 && Clock::now() < limit) {
    ASSERT_TRUE(session_->beat().ok());
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(session_->health().abandoned, 0);
  const Ticket next = *submit();
  ASSERT_TRUE(*session_->wait(next, reply_, after(5s)));
  EXPECT_TRUE(all_nines(reply_.body));
}

TEST_P(Serving, QueuedJobsExpireAndCancel) {
  std::promise<void> go = hold_worker();
  const Ticket first = *submit(), late = *submit(1), unwanted = *submit();
  session_->abandon(unwanted);
  std::this_thread::sleep_for(5ms);
  go.set_value();
  ASSERT_TRUE(*session_->wait(first, reply_, after(5s)));
  EXPECT_EQ(reply_.header.status, JobStatus::ok);
  ASSERT_TRUE(*session_->wait(late, reply_, after(5s)));
  EXPECT_EQ(reply_.header.status, JobStatus::expired);
  // BYE overtakes queued jobs, so the answer to the unwanted one comes first.
  const Deadline limit = after(5s);
  while (session_->health().abandoned > 0 && Clock::now() < limit) {
    ASSERT_TRUE(session_->beat().ok());
    std::this_thread::sleep_for(1ms);
  }
  ASSERT_TRUE(session_->say_bye().ok());
  worker_.join();
  EXPECT_EQ(stats_.expired, 1u);
  EXPECT_EQ(stats_.cancelled, 1u);
}

TEST_P(Serving, AWrongJobIsAnErrorOfThatJobAlone) {
  job_.header.layer = 3;
  Ticket ticket = *submit();
  ASSERT_TRUE(*session_->wait(ticket, reply_, after(5s)));
  ASSERT_TRUE(reply_.error.has_value());
  EXPECT_EQ(reply_.error->code, WireError::not_owned);
  EXPECT_EQ(reply_.error->text, "layer 3 is not here");
  job_.header.layer = 1;
  job_.head[2] = std::byte{200};  // an expert that does not exist
  ticket = *submit();
  ASSERT_TRUE(*session_->wait(ticket, reply_, after(5s)));
  ASSERT_TRUE(reply_.error.has_value());
  EXPECT_EQ(reply_.error->code, WireError::malformed);
  job_ = ScaleJob();
  ticket = *submit();
  ASSERT_TRUE(*session_->wait(ticket, reply_, after(5s)));
  EXPECT_TRUE(all_nines(reply_.body));
}

TEST_P(Serving, HeartbeatsAreHeard) {
  const Deadline before = session_->health().heard;
  const Deadline limit = after(5s);
  while (session_->health().heard == before && Clock::now() < limit) {
    ASSERT_TRUE(session_->beat().ok());
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_GT(session_->health().heard, before);
}

TEST_P(Serving, HeartbeatsAndJobsOnTwoThreads) {
  std::atomic<bool> stop{false};
  std::thread heart([&] {
    while (!stop) {
      EXPECT_TRUE(session_->beat().ok());
      std::this_thread::sleep_for(200us);
    }
  });
  for (int i = 0; i < 500; ++i) {
    const Result<Ticket> ticket = submit();
    ASSERT_TRUE(ticket.ok()) << ticket.error().message;
    ASSERT_TRUE(*session_->wait(*ticket, reply_, after(5s)));
    ASSERT_TRUE(all_nines(reply_.body));
  }
  stop = true;
  heart.join();
}

TEST_P(Serving, TheEndOfTheWorkerEndsWaiting) {
  std::promise<void> go = hold_worker();
  const Ticket ticket = *submit();
  std::thread closer([&] {
    std::this_thread::sleep_for(5ms);
    session_->close();
  });
  const Result<bool> done = session_->wait(ticket, reply_, after(10s));
  closer.join();
  go.set_value();
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::unavailable);
  EXPECT_FALSE(submit().ok());
}

// A worker that does not wait for ever for a client that hangs.
class GivingUp : public testing::TestWithParam<AttachKind> {
 protected:
  static constexpr auto kSilence = 200ms;
  void SetUp() override {
    pair_ = make_pair({.kind = GetParam()});
    worker_ = std::thread([this] {
      WorkerOffer offer = scale_offer();
      offer.client_silence = kSilence;
      end_ = serve(*pair_.worker, offer, handler_, stats_);
      ended_ = true;
    });
    ASSERT_TRUE(client_handshake(*pair_.client, scale_hello(), after(5s)).ok());
  }
  void TearDown() override {
    pair_.client->close();
    worker_.join();
  }

  ChannelPair pair_;
  ScaleHandler handler_;
  Stats stats_;
  Result<ServeEnd> end_ = ServeEnd::bye;
  std::atomic<bool> ended_{false};
  std::thread worker_;
};

TEST_P(GivingUp, OneThatSaysNothing) {
  const Deadline begin = Clock::now();
  while (!ended_ && Clock::now() < begin + 20s) std::this_thread::sleep_for(5ms);
  ASSERT_TRUE(ended_);
  EXPECT_GE(Clock::now() - begin, kSilence - 50ms);
  ASSERT_TRUE(end_.ok());
  EXPECT_EQ(*end_, ServeEnd::silent);
}

TEST_P(GivingUp, NotOneThatBeatsNorOneWhoseJobTakesLong) {
  for (const Deadline until = after(3 * kSilence); Clock::now() < until;) {
    ASSERT_TRUE(pair_.client->send({.op = Op::ping}, after(5s)).ok());
    std::this_thread::sleep_for(kSilence / 10);
  }
  EXPECT_FALSE(ended_);
  handler_.set_before_job([](const FrameHeader&) { std::this_thread::sleep_for(2 * kSilence); });
  const ScaleJob job;
  const auto parts = job.parts();
  ASSERT_TRUE(pair_.client->send(job.header, Parts(parts), after(5s)).ok());
  Frame frame;
  Result<bool> came = true;
  do {
    came = pair_.client->receive(frame, after(20s));
  } while (came.ok() && *came && frame.header.op == Op::pong);
  ASSERT_TRUE(came.ok() && *came);
  EXPECT_EQ(frame.header.op, Op::result);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GivingUp, testing::Values(AttachKind::stream, AttachKind::rings),
                         [](const auto& info) {
                           return info.param == AttachKind::stream ? "stream" : "rings";
                         });

// A job that comes slowly comes all the same, and one that stops in the middle does not.
TEST(GivingUpOfStreams, CountsTheBytesOfAFrame) {
  static constexpr auto kSilence = 200ms;
  for (const bool stops : {false, true}) {
    auto [mine, theirs] = socket_pair();
    Result<ServeEnd> end = ServeEnd::bye;
    std::thread worker([&end, fd = std::move(theirs)]() mutable {
      const auto channel = *StreamChannel::adopt(std::move(fd), "slow");
      WorkerOffer offer = scale_offer();
      offer.client_silence = kSilence;
      ScaleHandler handler;
      Stats stats;
      end = serve(*channel, offer, handler, stats);
    });
    const int fd = mine.get();
    const auto channel = *StreamChannel::adopt(std::move(mine), "slow");
    ASSERT_TRUE(client_handshake(*channel, scale_hello(), after(5s)).ok());
    std::array<std::byte, kHeaderBytes> ping;
    encode_header({.version = kVersionMax, .op = Op::ping}, ping);
    const std::size_t sent = stops ? ping.size() / 2 : ping.size();
    for (std::size_t i = 0; i < sent; ++i) {
      ASSERT_EQ(::send(fd, &ping[i], 1, MSG_NOSIGNAL), 1) << i;
      std::this_thread::sleep_for(kSilence / 10);
    }
    Frame frame;
    const Result<bool> came = channel->receive(frame, after(20s));
    EXPECT_EQ(came.ok(), !stops);
    channel->close();
    worker.join();
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(*end, stops ? ServeEnd::silent : ServeEnd::peer_gone);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Serving, testing::Values(AttachKind::stream, AttachKind::rings),
                         [](const auto& info) {
                           return info.param == AttachKind::stream ? "stream" : "rings";
                         });

// The other end of a session, frame by frame.
struct Hand {
  explicit Hand(const Hello& hello = scale_hello())
      : pair_(make_pair({.kind = AttachKind::rings})), worker_(*pair_.worker) {
    const HelloAck ack{.credits = hello.credits,
                       .in_types = hello.in_types,
                       .out_types = hello.out_types,
                       .max_rows = hello.max_rows,
                       .max_pairs = hello.max_pairs};
    worker_.set_limits(agreed_limits(hello, ack));
    session_ = std::make_unique<Session>(std::move(pair_.client), hello, ack);
  }
  Ticket submit() {
    const ScaleJob job;
    const auto parts = job.parts();
    return *session_->submit(job.header, Parts(parts));
  }
  void say(const FrameHeader& header) { ASSERT_TRUE(worker_.send(header, after(1s)).ok()); }
  bool hears(Op op) {
    Frame frame;
    const Result<bool> came = worker_.receive(frame, Deadline::min());
    return came.ok() && *came && frame.header.op == op;
  }

  ChannelPair pair_;
  Channel& worker_;
  std::unique_ptr<Session> session_;
  JobReply reply_;
};
class ByHand : public testing::Test, protected Hand {};

TEST_F(ByHand, OnePingAtATime) {
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(session_->beat().ok());
  EXPECT_TRUE(hears(Op::ping));
  EXPECT_FALSE(hears(Op::ping));
  submit();  // there is room for it
  EXPECT_TRUE(hears(Op::compute_experts));
  say({.op = Op::pong});
  ASSERT_TRUE(session_->beat().ok());
  EXPECT_TRUE(hears(Op::ping));
}

// Layers with experts away are asked for their counts instead.
TEST(BeatOfLayers, BringsCounts) {
  Hello hello = scale_hello();
  hello.role = Role::layers;
  Hand hand(hello);
  const Stats stats{.jobs = 3, .experts = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(hand.session_->beat().ok());
  EXPECT_TRUE(hand.hears(Op::stats));
  EXPECT_FALSE(hand.hears(Op::stats)) << "one at a time";
  EXPECT_EQ(hand.session_->take_stats(), std::nullopt);
  ASSERT_TRUE(hand.worker_.send({.op = Op::stats}, encode(stats), after(1s)).ok());
  ASSERT_TRUE(hand.session_->beat().ok());
  EXPECT_EQ(hand.session_->take_stats(), stats);
  EXPECT_EQ(hand.session_->take_stats(), std::nullopt) << "once";
  hand.say({.op = Op::stats});  // and no answer in it
  EXPECT_FALSE(hand.session_->beat().ok());
  EXPECT_TRUE(hand.session_->closed());
}

TEST_F(ByHand, WhatNothingAskedForEndsTheSession) {
  const FrameHeader frames[] = {{.op = Op::pong},
                                {.op = Op::progress},
                                {.op = Op::result, .sequence = 7, .status = JobStatus::expired},
                                {.op = Op::bye}};
  for (const FrameHeader& frame : frames) {
    Hand other;
    const Ticket ticket = other.submit();
    other.say(frame);
    const Result<bool> done = other.session_->wait(ticket, other.reply_, after(5s));
    ASSERT_FALSE(done.ok()) << op_name(frame.op);
    EXPECT_EQ(done.error().code, ErrorCode::invalid);
    EXPECT_TRUE(other.session_->closed());
    const Status beat = other.session_->beat();
    ASSERT_FALSE(beat.ok());
    EXPECT_EQ(beat.error().code, ErrorCode::invalid) << "whoever saw it";
    EXPECT_EQ(beat.error().message, done.error().message);
  }
}

TEST_F(ByHand, AJobIsAnsweredOnce) {
  const Ticket ticket = submit();
  const FrameHeader answer{
      .op = Op::result, .sequence = ticket.sequence, .status = JobStatus::expired};
  say(answer);
  say(answer);
  EXPECT_TRUE(*session_->wait(ticket, reply_, after(5s)));
  const Status status = session_->beat();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::invalid);
}

// Ops of a later version are skipped, and keep nobody waiting longer.
TEST_F(ByHand, AFloodDoesNotMoveTheDeadline) {
  const Ticket ticket = submit();
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    while (!stop) (void)worker_.send({.op = static_cast<Op>(999)}, after(1ms));
  });
  const Deadline begin = Clock::now();
  const Result<bool> done = session_->wait(ticket, reply_, begin + 50ms);
  EXPECT_LT(Clock::now() - begin, 1s);
  ASSERT_TRUE(done.ok());
  EXPECT_FALSE(*done);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(session_->beat().ok());
  EXPECT_LT(Clock::now() - begin, 2s);
  stop = true;
  flood.join();
}

// And not more than it was away, whatever the worker says.
TEST_F(ByHand, ALateResultTellsItsTime) {
  for (const std::uint32_t told_us : {5'000u, 3'600'000'000u}) {
    const Deadline begin = Clock::now();
    const Ticket ticket = submit();
    EXPECT_FALSE(*session_->wait(ticket, reply_, after(10ms)));
    session_->abandon(ticket);
    EXPECT_FALSE(session_->take_late().has_value());
    say({.op = Op::result, .sequence = ticket.sequence, .compute_us = told_us});
    ASSERT_TRUE(session_->beat().ok());
    const auto late = session_->take_late();
    ASSERT_TRUE(late.has_value());
    EXPECT_EQ(late->items, 2u);
    EXPECT_GE(late->compute, 5ms);
    EXPECT_LE(late->compute,
              std::min<Clock::duration>(Clock::now() - begin, std::chrono::microseconds(told_us)));
    EXPECT_FALSE(session_->take_late().has_value());
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
  ASSERT_TRUE(client_handshake(client, scale_hello(), after(5s)).ok());
  Frame frame;
  const auto answer = [&](const FrameHeader& header) {
    EXPECT_TRUE(client.send(header, after(1s)).ok());
    EXPECT_TRUE(*client.receive(frame, after(5s)));
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
    ASSERT_TRUE(client.send(job.header, Parts(parts), after(1s)).ok());
  }
  go.set_value();
  int results = 0, refused = 0;
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(*client.receive(frame, after(5s)));
    (frame.header.op == Op::result ? results : refused) += 1;
  }
  EXPECT_GE(refused, 2);
  EXPECT_GE(results, 4);
  ASSERT_TRUE(client.send({.op = Op::bye}, after(1s)).ok());
  worker.join();
  EXPECT_EQ(*end, ServeEnd::bye);
}

// A job and a result of a megabyte each, several times what a socket holds, on their way to each
// other: the worker takes the job while it sends.
TEST(Streams, LargeJobsAndResultsCross) {
  Hello hello = scale_hello();
  hello.max_rows = 4096;
  ChannelPair pair = make_pair({.kind = AttachKind::stream});
  Stats stats;
  ScaleHandler handler;
  std::thread worker([&, channel = std::shared_ptr<Channel>(std::move(pair.worker))] {
    (void)serve(*channel, scale_offer(), handler, stats);
  });
  const Result<HandshakeReply> reply = client_handshake(*pair.client, hello, after(5s));
  ASSERT_TRUE(reply.ok());
  Session session(std::move(pair.client), hello, std::get<HelloAck>(*reply));
  ScaleJob job;
  job.header.rows = 4096;
  job.rows.resize(std::size_t{4096} * 64 * 4);
  const auto parts = job.parts();
  std::vector<Ticket> tickets;
  for (int i = 0; i < session.agreed().credits; ++i) {
    const Result<Ticket> ticket = session.submit(job.header, Parts(parts), 5s);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message;
    tickets.push_back(*ticket);
  }
  ASSERT_GE(tickets.size(), 2u);
  JobReply answer;
  for (const Ticket& ticket : tickets) {
    ASSERT_TRUE(*session.wait(ticket, answer, after(5s)));
    EXPECT_TRUE(all_nines(answer.body.first(64 * 4)));
  }
  session.close();
  worker.join();
}

}  // namespace
}  // namespace tessera::worker
