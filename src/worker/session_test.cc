// Session against serve(), in one process.
#include "worker/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "worker/channel_pair.h"
#include "worker/scale_handler.h"

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
    const Result<HandshakeReply> reply = client_handshake(*pair.client, scale_hello(), after(60s));
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

// A second at the least, and five times what such jobs took.
TEST_P(Serving, AJobThatTakesMuchLongerThanOthersIsLate) {
  EXPECT_FALSE(session_->health().late);
  for (int i = 0; i < 20; ++i) {
    const Result<Ticket> ticket = submit();
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(*session_->wait(*ticket, reply_, after(60s)));
  }
  EXPECT_FALSE(session_->health().late) << "there is none";
  std::promise<void> held = hold_worker();
  const Deadline begin = Clock::now();
  const Result<Ticket> ticket = submit();
  ASSERT_TRUE(ticket.ok());
  while (!session_->health().late && Clock::now() - begin < 60s) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(session_->health().late);
  EXPECT_GE(Clock::now() - begin, 1s);
  held.set_value();
  ASSERT_TRUE(*session_->wait(*ticket, reply_, after(60s)));
  EXPECT_FALSE(session_->health().late);
}

TEST_P(Serving, ComputesJobs) {
  for (int i = 0; i < 200; ++i) {
    const Result<Ticket> ticket = submit();
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(*session_->wait(*ticket, reply_, after(60s)));
    ASSERT_FALSE(reply_.error.has_value());
    ASSERT_TRUE(all_nines(reply_.body));
  }
  ASSERT_TRUE(session_->say_bye().ok());
  worker_.join();
  EXPECT_EQ(*end_, ServeEnd::bye);
  EXPECT_EQ(stats_.jobs, 200u);
  EXPECT_EQ(stats_.pairs, 400u);
}

TEST_P(Serving, WhatIsNearIsAnnounced) {
  handler_.say_near();
  for (int i = 0; i < 20; ++i) {
    session_->announce();
    const Result<Ticket> ticket = submit();
    ASSERT_TRUE(ticket.ok());
    int told = 0;
    ASSERT_TRUE(*session_->wait(*ticket, reply_, after(60s), [&] { ++told; }));
    EXPECT_EQ(told, 1);
    EXPECT_TRUE(all_nines(reply_.body));
  }
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
    ASSERT_TRUE(*session_->wait(*ticket, reply_, after(60s)));
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
  const Deadline limit = after(60s);
  while (session_->health().abandoned > 0 && Clock::now() < limit) {
    ASSERT_TRUE(session_->beat().ok());
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(session_->health().abandoned, 0);
  const Ticket next = *submit();
  ASSERT_TRUE(*session_->wait(next, reply_, after(60s)));
  EXPECT_TRUE(all_nines(reply_.body));
}

TEST_P(Serving, QueuedJobsExpireAndCancel) {
  std::promise<void> go = hold_worker();
  const Ticket first = *submit(), late = *submit(1), unwanted = *submit();
  session_->abandon(unwanted);
  std::this_thread::sleep_for(5ms);
  go.set_value();
  ASSERT_TRUE(*session_->wait(first, reply_, after(60s)));
  EXPECT_EQ(reply_.header.status, JobStatus::ok);
  ASSERT_TRUE(*session_->wait(late, reply_, after(60s)));
  EXPECT_EQ(reply_.header.status, JobStatus::expired);
  // BYE overtakes queued jobs, so the answer to the unwanted one comes first.
  const Deadline limit = after(60s);
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
  ASSERT_TRUE(*session_->wait(ticket, reply_, after(60s)));
  ASSERT_TRUE(reply_.error.has_value());
  EXPECT_EQ(reply_.error->code, WireError::not_owned);
  EXPECT_EQ(reply_.error->text, "layer 3 is not here");
  job_.header.layer = 1;
  job_.head[2] = std::byte{200};  // an expert that does not exist
  ticket = *submit();
  ASSERT_TRUE(*session_->wait(ticket, reply_, after(60s)));
  ASSERT_TRUE(reply_.error.has_value());
  EXPECT_EQ(reply_.error->code, WireError::malformed);
  job_ = ScaleJob();
  ticket = *submit();
  ASSERT_TRUE(*session_->wait(ticket, reply_, after(60s)));
  EXPECT_TRUE(all_nines(reply_.body));
}

TEST_P(Serving, HeartbeatsAreHeard) {
  const Deadline before = session_->health().heard;
  const Deadline limit = after(60s);
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
    ASSERT_TRUE(*session_->wait(*ticket, reply_, after(60s)));
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
  const Result<bool> done = session_->wait(ticket, reply_, after(60s));
  closer.join();
  go.set_value();
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::unavailable);
  EXPECT_FALSE(submit().ok());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Serving, testing::Values(AttachKind::stream, AttachKind::rings),
                         [](const auto& info) {
                           return info.param == AttachKind::stream ? "stream" : "rings";
                         });

}  // namespace
}  // namespace tessera::worker
