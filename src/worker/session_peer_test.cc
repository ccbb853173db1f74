// Session against a worker that is played frame by frame.
#include "worker/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "worker/channel_pair.h"
#include "worker/scale_handler.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

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

}  // namespace
}  // namespace tessera::worker
