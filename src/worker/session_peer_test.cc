// Session against a worker that is played frame by frame.
#include "worker/session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "worker/channel_pair.h"
#include "worker/scale_handler.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

// The other end of a session, frame by frame.
struct Hand {
  explicit Hand(const Hello& hello = scale_hello(), RoutingCounts* counts = nullptr)
      : pair_(make_pair({.kind = AttachKind::rings})), worker_(*pair_.worker) {
    const HelloAck ack{.credits = hello.credits,
                       .in_types = hello.in_types,
                       .out_types = hello.out_types,
                       .max_rows = hello.max_rows,
                       .max_pairs = hello.max_pairs};
    worker_.set_limits(agreed_limits(hello, ack));
    session_ = std::make_unique<Session>(std::move(pair_.client), hello, ack, counts);
  }
  Ticket submit() {
    const ScaleJob job;
    const auto parts = job.parts();
    return *session_->submit(job.header, Parts(parts));
  }
  void say(const FrameHeader& header) { ASSERT_TRUE(worker_.send(header, after(60s)).ok()); }
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

Hello layers_with_experts_away() {
  Hello hello = scale_hello();
  hello.role = Role::layers;
  return hello;
}

// Of a worker of layers: whether the client goes on after these counts of a job.
bool believes(Hand& hand, const Ticket& job, const ExpertCounts& experts) {
  const FrameHeader header{.op = Op::stats, .sequence = job.sequence};
  if (!hand.worker_.send(header, encode(Stats{.experts = experts}), after(60s)).ok()) return false;
  return hand.session_->beat().ok();
}

TEST(CountsOfLayers, ComeBeforeTheResult) {
  Hand hand(layers_with_experts_away());
  EXPECT_EQ(hand.session_->take_experts(), ExpertCounts{});
  Ticket job = hand.submit();  // of one row, which is eight pairs
  const ExpertCounts counts{1, 2, 3, 0, 0, 4, 5, 6, 7, 8};
  ASSERT_TRUE(believes(hand, job, counts));
  EXPECT_EQ(hand.session_->take_experts(), counts);
  EXPECT_EQ(hand.session_->take_experts(), ExpertCounts{}) << "once";
  job = hand.submit();
  ASSERT_TRUE(believes(hand, job, counts));
  EXPECT_EQ(hand.session_->take_experts(), ExpertCounts{}) << "and nothing twice";
  hand.session_->abandon(job);
  job = hand.submit();
  hand.session_->abandon(job);
  ASSERT_TRUE(believes(hand, job, counts)) << "of one that was given up too";
  EXPECT_FALSE(believes(hand, job, counts)) << "but once a job";
  EXPECT_TRUE(hand.session_->closed());
}

TEST(CountsOfLayers, WithoutAJobOrABodyEndTheSession) {
  for (const bool has_job : {false, true}) {
    Hand hand(layers_with_experts_away());
    const Ticket job = has_job ? hand.submit() : Ticket{};
    ASSERT_TRUE(hand.session_->beat().ok());  // which asks for no counts
    hand.say({.op = Op::stats, .sequence = job.sequence});
    EXPECT_FALSE(hand.session_->beat().ok());
    EXPECT_TRUE(hand.session_->closed());
  }
}

TEST(CountsOfLayers, ThatCannotBeEndTheSession) {
  for (const ExpertCounts& lie : {ExpertCounts{}, ExpertCounts{17}, ExpertCounts{~0ull}}) {
    Hand hand(layers_with_experts_away());
    ASSERT_TRUE(believes(hand, hand.submit(), {8}));
    EXPECT_FALSE(believes(hand, hand.submit(), lie));
    EXPECT_TRUE(hand.session_->closed());
    const Status why = hand.session_->beat();
    EXPECT_EQ(why.error().code, ErrorCode::invalid);
    EXPECT_NE(why.error().message.find("STATS"), std::string::npos) << why.error().message;
    EXPECT_EQ(hand.session_->take_experts(), ExpertCounts{8}) << "what came before counts";
  }
}

// Two layers of four with experts.
struct CountingHand {
  CountingHand() : counts(spec()), hand(hello(), &counts) {}
  static ModelSpec spec() {
    ModelSpec spec;
    spec.layers.resize(4);
    for (const std::size_t l : {1u, 3u}) spec.layers[l].moe = MoeSpec{.n_expert = 8, .n_used = 2};
    return spec;
  }
  static Hello hello() {
    Hello hello = scale_hello();  // jobs are jobs
    hello.layers.count_routing = true;
    return hello;
  }
  // Of one row.
  void answer_a_job() {
    const Ticket job = hand.submit();
    ASSERT_TRUE(hand.hears(Op::compute_experts));
    hand.say({.op = Op::result, .sequence = job.sequence, .status = JobStatus::expired});
    ASSERT_TRUE(*hand.session_->wait(job, hand.reply_, after(60s)));
  }
  // What the next heartbeat asks.
  FrameHeader asked() {
    Frame frame;
    EXPECT_TRUE(hand.session_->beat().ok());
    EXPECT_TRUE(*hand.worker_.receive(frame, Deadline::min()));
    return frame.header;
  }
  bool believes(std::uint16_t layer, const std::vector<std::uint32_t>& chosen) {
    std::vector<std::byte> body;
    encode_routed(chosen, 8, body);
    EXPECT_TRUE(hand.worker_.send({.op = Op::routed, .layer = layer}, body, after(60s)));
    return hand.session_->beat().ok();
  }
  std::vector<std::uint32_t> taken(int layer) {
    const std::span<const std::uint32_t> news = counts.take(layer);
    return {news.begin(), news.end()};
  }

  RoutingCounts counts;
  Hand hand;
};

TEST(RoutingOfLayers, IsAskedForInThePlaceOfHeartbeats) {
  CountingHand it;
  EXPECT_EQ(it.asked().op, Op::ping) << "nothing was computed";
  it.hand.say({.op = Op::pong});
  ASSERT_TRUE(it.hand.session_->beat().ok());
  ASSERT_TRUE(it.hand.hears(Op::ping));
  it.hand.say({.op = Op::pong});
  it.answer_a_job();
  const FrameHeader first = it.asked();
  EXPECT_EQ(first.op, Op::routed);
  EXPECT_EQ(first.layer, 1);
  EXPECT_TRUE(it.hand.session_->beat().ok());
  EXPECT_FALSE(it.hand.hears(Op::routed)) << "one at a time";
  ASSERT_TRUE(it.believes(1, {0, 1, 1}));  // and asks for the next
  Frame second;
  ASSERT_TRUE(*it.hand.worker_.receive(second, Deadline::min()));
  EXPECT_EQ(second.header.op, Op::routed);
  EXPECT_EQ(second.header.layer, 3);
  ASSERT_TRUE(it.believes(3, {1, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_TRUE(it.hand.hears(Op::ping)) << "all was told";
  EXPECT_EQ(it.taken(1), (std::vector<std::uint32_t>{0, 1, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(it.taken(3), (std::vector<std::uint32_t>{1, 0, 0, 0, 0, 0, 0, 1}));
}

TEST(RoutingOfLayers, ThatCannotBeEndsTheSession) {
  for (const std::vector<std::uint32_t>& lie :
       {std::vector<std::uint32_t>{2}, {1, 1, 1}, {~0u}, {0, 0, 0, 0, 0, 0, 0, 7}}) {
    CountingHand it;
    it.answer_a_job();
    ASSERT_EQ(it.asked().layer, 1);
    EXPECT_FALSE(it.believes(1, lie));
    EXPECT_TRUE(it.hand.session_->closed());
    const Status why = it.hand.session_->beat();
    EXPECT_EQ(why.error().code, ErrorCode::invalid);
    EXPECT_NE(why.error().message.find("ROUTED"), std::string::npos) << why.error().message;
    EXPECT_EQ(it.taken(1), std::vector<std::uint32_t>(8));
  }
}

TEST(RoutingOfLayers, ThatNothingAskedForEndsTheSession) {
  for (const int wrong : {0, 1, 2, 3}) {
    SCOPED_TRACE(wrong);
    CountingHand it;
    if (wrong > 0) {
      it.answer_a_job();
      ASSERT_EQ(it.asked().op, Op::routed);
    }
    if (wrong == 1) {
      EXPECT_FALSE(it.believes(3, {})) << "of another layer";
    } else if (wrong == 2) {
      it.hand.say({.op = Op::routed, .layer = 1});
      EXPECT_FALSE(it.hand.session_->beat().ok()) << "without a body";
    } else {
      if (wrong == 3) {
        ASSERT_TRUE(it.believes(1, {}));
      }
      EXPECT_FALSE(it.believes(1, {})) << "once more than it was asked for";
    }
    EXPECT_TRUE(it.hand.session_->closed());
  }
}

// At the end all is asked for, one layer after the other, for as long as the worker answers.
TEST(RoutingOfLayers, IsCollectedAtTheEnd) {
  for (const bool answers : {true, false}) {
    CountingHand it;
    it.answer_a_job();
    std::thread worker([&] {
      Frame frame;
      std::vector<std::byte> body;
      encode_routed(std::vector<std::uint32_t>{1, 1}, 8, body);
      for (int asked = 0; answers && asked < 2;) {
        ASSERT_TRUE(*it.hand.worker_.receive(frame, after(60s)));
        if (frame.header.op != Op::routed) continue;
        ++asked;
        ASSERT_TRUE(it.hand.worker_.send({.op = Op::routed, .layer = frame.header.layer}, body,
                                         after(60s)));
      }
    });
    const Deadline begin = Clock::now();
    it.hand.session_->collect_routing(after(answers ? 60s : 20ms));
    EXPECT_LT(Clock::now() - begin, 50s);
    worker.join();
    for (const int layer : {1, 3}) EXPECT_EQ(it.taken(layer)[0], answers ? 1u : 0u);
  }
}

TEST_F(ByHand, WhatNothingAskedForEndsTheSession) {
  const FrameHeader frames[] = {{.op = Op::pong},
                                {.op = Op::progress},
                                {.op = Op::near, .sequence = 7},
                                {.op = Op::routed, .layer = 0},
                                {.op = Op::result, .sequence = 7, .status = JobStatus::expired},
                                {.op = Op::bye}};
  for (const FrameHeader& frame : frames) {
    Hand other;
    const Ticket ticket = other.submit();
    other.say(frame);
    const Result<bool> done = other.session_->wait(ticket, other.reply_, after(60s));
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
  EXPECT_TRUE(*session_->wait(ticket, reply_, after(60s)));
  const Status status = session_->beat();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::invalid);
}

TEST_F(ByHand, AResultIsNearOnce) {
  const Ticket ticket = submit();
  say({.op = Op::near, .sequence = ticket.sequence});
  int told = 0;
  EXPECT_FALSE(*session_->wait(ticket, reply_, after(1ms), [&] { ++told; }));
  EXPECT_EQ(told, 1);
  say({.op = Op::near, .sequence = ticket.sequence});
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
  // Each of these ends while the flood goes on.
  const Result<bool> done = session_->wait(ticket, reply_, after(50ms));
  EXPECT_TRUE(done.ok() && !*done);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(session_->beat().ok());
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

// The ring's headers are all in use by a worker that answers and reads nothing.
TEST_F(ByHand, ACancelWaitsForRoom) {
  const auto cancels = [&] {
    int count = 0;
    Frame frame;
    while (*worker_.receive(frame, Deadline::min())) count += frame.header.op == Op::cancel ? 1 : 0;
    return count;
  };
  for (int i = 0; i < 31; ++i) {
    const Ticket ticket = submit();
    session_->abandon(ticket);
    say({.op = Op::result, .sequence = ticket.sequence, .status = JobStatus::cancelled});
    ASSERT_TRUE(session_->beat().ok());  // the first asks, and is not answered
  }
  session_->abandon(submit());
  EXPECT_EQ(cancels(), 31);
  ASSERT_TRUE(session_->beat().ok());
  EXPECT_EQ(cancels(), 1);
  ASSERT_TRUE(session_->beat().ok());
  EXPECT_EQ(cancels(), 0) << "once";
}

// One that reads nothing, over a socket that holds a part of a job: nobody waits until it does.
TEST(StuckWorker, TakesTheRestLater) {
  ChannelPair pair = make_pair({.kind = AttachKind::stream});
  Channel& worker = *pair.worker;
  const int little = 4096;
  ASSERT_EQ(::setsockopt(pair.client->descriptor(), SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)),
            0);
  const Hello hello = scale_hello();
  const HelloAck ack{.credits = 4,
                     .in_types = hello.in_types,
                     .out_types = hello.out_types,
                     .max_rows = hello.max_rows,
                     .max_pairs = hello.max_pairs};
  worker.set_limits(agreed_limits(hello, ack));
  Session session(std::move(pair.client), hello, ack);
  ScaleJob job;
  job.header.rows = hello.max_rows;
  job.rows.resize(job.rows.size() * hello.max_rows, std::byte{1});
  const auto parts = job.parts();
  const Deadline begin = Clock::now();
  const Result<Ticket> first = session.submit(job.header, Parts(parts), {10min, 1ms});
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_LT(Clock::now() - begin, 1min);
  JobReply reply;
  EXPECT_FALSE(*session.wait(*first, reply, after(5ms)));
  session.abandon(*first);
  EXPECT_EQ(session.health().abandoned, 1);
  const Result<Ticket> second = session.submit(job.header, Parts(parts), {10min, 1ms});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::exhausted) << "nothing gets past the first one";
  EXPECT_TRUE(session.beat().ok());

  Frame frame;
  while (!*worker.receive(frame, after(1ms))) ASSERT_TRUE(session.beat().ok());
  EXPECT_EQ(frame.header.sequence, first->sequence);
  EXPECT_TRUE(std::ranges::equal(frame.body().subspan(job.head.size()), job.rows));
  while (!*worker.receive(frame, after(1ms))) ASSERT_TRUE(session.beat().ok());
  EXPECT_EQ(frame.header.op, Op::cancel) << "that it was given up goes out behind it";
  EXPECT_EQ(frame.header.sequence, first->sequence);
  ASSERT_TRUE(
      worker
          .send({.op = Op::result, .sequence = first->sequence, .status = JobStatus::cancelled},
                after(60s))
          .ok());
  ASSERT_TRUE(session.beat().ok());
  EXPECT_EQ(session.health().abandoned, 0);
}

}  // namespace
}  // namespace tessera::worker
