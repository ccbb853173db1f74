#include "worker/handshake.h"

#include <gtest/gtest.h>

#include <future>
#include <new>
#include <thread>

#include "worker/channel_pair.h"
#include "worker/scale_handler.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

RefuseReason refusal(const Hello& hello, const WorkerOffer& offer = scale_offer()) {
  const HandshakeReply reply = judge(hello, offer);
  return std::holds_alternative<Refuse>(reply) ? std::get<Refuse>(reply).reason : RefuseReason{};
}

TEST(Judge, GrantsTheSmaller) {
  WorkerOffer offer = scale_offer();
  offer.max_rows = 16;
  offer.in_types = type_bit(WireType::f32);
  const HandshakeReply reply = judge(scale_hello(), offer);
  const HelloAck& ack = std::get<HelloAck>(reply);
  EXPECT_EQ(ack.max_rows, 16u);
  EXPECT_EQ(ack.max_pairs, 256u);
  EXPECT_EQ(ack.in_types, type_bit(WireType::f32));
  EXPECT_EQ(ack.credits, 4);
}

TEST(Judge, RefusesWithReasons) {
  Hello hello = scale_hello();
  hello.version_min = hello.version_max = kVersionMax + 1;
  EXPECT_EQ(refusal(hello), RefuseReason::version);
  hello = scale_hello();
  hello.model[31] = std::byte{1};
  EXPECT_EQ(refusal(hello), RefuseReason::model);
  hello = scale_hello();
  hello.dims.n_ff_expert += 1;
  EXPECT_EQ(refusal(hello), RefuseReason::dims);
  hello = scale_hello();
  hello.role = Role::drafter;
  EXPECT_EQ(refusal(hello), RefuseReason::role);
  WorkerOffer offer = scale_offer();
  offer.out_types = type_bit(WireType::f16);
  hello = scale_hello();
  hello.out_types = type_bit(WireType::f32);
  EXPECT_EQ(refusal(hello, offer), RefuseReason::types);
}

struct Shaken {
  Result<HandshakeReply> client = HandshakeReply(Refuse{});
  Result<Agreement> worker = Agreement{};
  ChannelPair pair;
};

Shaken shake(const Hello& hello, const Prepare& prepare, AttachKind kind) {
  Shaken s{.pair = make_pair({.kind = kind})};
  std::thread other(
      [&] { s.worker = worker_handshake(*s.pair.worker, scale_offer(), prepare, after(60s)); });
  s.client = client_handshake(*s.pair.client, hello, after(60s));
  other.join();
  return s;
}

const Prepare kReady = [](const Hello&, const HelloAck&) -> Result<Prepared> {
  return Prepared{.memory_free = 99};
};

TEST(Handshake, SetsTheSameLimits) {
  const Shaken s = shake(scale_hello(), kReady, AttachKind::rings);
  ASSERT_TRUE(s.client.ok() && s.worker.ok());
  EXPECT_EQ(std::get<HelloAck>(*s.client), s.worker->ack);
  EXPECT_EQ(s.worker->ack.memory_free, 99u);
  EXPECT_EQ(s.pair.client->limits(), s.pair.worker->limits());
  EXPECT_EQ(s.pair.client->limits().max_rows, 64u);
}

// Before it says what it wants, a client may ask what the worker is and how far away.
TEST(Handshake, PingsBeforeHelloAreAnswered) {
  for (const AttachKind kind : {AttachKind::stream, AttachKind::rings}) {
    ChannelPair pair = make_pair({.kind = kind});
    std::thread other([&] {
      EXPECT_TRUE(worker_handshake(*pair.worker, scale_offer(), kReady, after(60s)).ok());
    });
    EXPECT_TRUE(client_probe(*pair.client, after(60s)).ok());
    const auto round_trip = client_round_trip(*pair.client, after(60s));
    EXPECT_TRUE(round_trip.ok() && *round_trip > 0ns && *round_trip < 5s);
    EXPECT_TRUE(client_handshake(*pair.client, scale_hello(), after(60s)).ok());
    other.join();
  }
}

TEST(Handshake, AStreamGetsAsManyCreditsAsRings) {
  for (const AttachKind kind : {AttachKind::stream, AttachKind::rings}) {
    const Shaken s = shake(scale_hello(), kReady, kind);
    EXPECT_EQ(std::get<HelloAck>(*s.client).credits, 4);
  }
}

TEST(Handshake, NoMemory) {
  const Prepare full = [](const Hello&, const HelloAck&) -> Result<Prepared> {
    return Error::make(ErrorCode::exhausted, "device memory is full");
  };
  const Prepare none_left = [](const Hello&, const HelloAck&) -> Result<Prepared> {
    throw std::bad_alloc();
  };
  for (const auto& [prepare, says] :
       {std::pair<Prepare, std::string>{full, "memory: device memory is full"},
        {none_left, "memory: the worker is out of memory"}}) {
    const Shaken s = shake(scale_hello(), prepare, AttachKind::rings);
    EXPECT_EQ(std::get<Refuse>(*s.client).reason, RefuseReason::memory);
    EXPECT_EQ(refusal_text(std::get<Refuse>(*s.client)), says);
    EXPECT_FALSE(s.worker.ok());
  }
}

// A client is not told about the worker's own machine.
TEST(Handshake, WhatWentWrongHereIsForTheLog) {
  const Prepare broken = [](const Hello&, const HelloAck&) -> Result<Prepared> {
    return Error::make(ErrorCode::io, "/home/model.gguf: read error");
  };
  const Shaken s = shake(scale_hello(), broken, AttachKind::stream);
  EXPECT_EQ(refusal_text(std::get<Refuse>(*s.client)), "loading; its log says why");
}

TEST(Handshake, RefusalsAreCountedByReason) {
  Refusals refusals;
  WorkerOffer offer = scale_offer();
  offer.refusals = &refusals;
  EXPECT_EQ(refusals.text(), "");
  const auto refused = [&](const Hello& hello) {
    ChannelPair pair = make_pair({.kind = AttachKind::stream});
    std::thread other([&] { (void)client_handshake(*pair.client, hello, after(60s)); });
    const auto agreement = worker_handshake(*pair.worker, offer, kReady, after(60s));
    other.join();
    return agreement ? std::string() : agreement.error().message;
  };
  Hello other_dims = scale_hello();
  other_dims.dims.n_ff_expert += 1;
  Hello other_model = scale_hello();
  other_model.model[31] = std::byte{1};
  EXPECT_NE(refused(other_dims).find("refused (dims, 1 so far)"), std::string::npos);
  EXPECT_NE(refused(other_dims).find("refused (dims, 2 so far)"), std::string::npos);
  EXPECT_NE(refused(other_model).find("refused (model, 1 so far)"), std::string::npos);
  EXPECT_EQ(refused(scale_hello()), "");
  EXPECT_EQ(refusals.of(RefuseReason::dims), 2u);
  EXPECT_EQ(refusals.text(), "1 model, 2 dims");
}

TEST(Handshake, GreedyWorkersAndStrangers) {
  for (int kind = 0; kind < 3; ++kind) {
    ChannelPair pair = make_pair({.kind = AttachKind::stream});
    std::thread other([&] {
      Frame frame;
      ASSERT_TRUE(*pair.worker->receive(frame, after(60s)));
      HelloAck ack = std::get<HelloAck>(judge(scale_hello(), scale_offer()));
      if (kind == 0) ack.max_rows = 65;
      if (kind == 1) ack.version = kVersionMax + 1;
      const Op op = kind == 2 ? Op::pong : Op::hello_ack;
      const std::vector<std::byte> body = kind == 2 ? std::vector<std::byte>() : encode(ack);
      ASSERT_TRUE(pair.worker->send({.op = op}, body, after(60s)).ok());
    });
    const auto reply = client_handshake(*pair.client, scale_hello(), after(60s));
    other.join();
    ASSERT_FALSE(reply.ok()) << kind;
    EXPECT_EQ(reply.error().code, ErrorCode::invalid);
  }
}

TEST(Handshake, RingsHoldTheLargestJobs) {
  const Hello hello = scale_hello();
  ChannelPair pair = make_pair(ring_sizes(hello));
  const HelloAck ack = std::get<HelloAck>(judge(hello, scale_offer()));
  pair.worker->set_limits(agreed_limits(hello, ack));
  const std::vector<std::byte> body(64 * 64 * 4 + 256 * 8);
  const FrameHeader job{.op = Op::compute_experts,
                        .layer = 0,
                        .rows = 64,
                        .items = 256,
                        .in_type = WireType::f32,
                        .out_type = WireType::f32};
  for (int i = 0; i < hello.credits; ++i)
    ASSERT_TRUE(pair.client->send(job, body, Deadline::min()).ok());
  Frame frame;
  for (int i = 0; i < hello.credits; ++i) ASSERT_TRUE(*pair.worker->receive(frame, after(60s)));
}

TEST(Handshake, SilenceEnds) {
  ChannelPair pair = make_pair({});
  EXPECT_EQ(client_handshake(*pair.client, scale_hello(), after(20ms)).error().code,
            ErrorCode::unavailable);
}

TEST(Handshake, AFloodDoesNotMoveTheDeadline) {
  for (const AttachKind kind : {AttachKind::rings, AttachKind::stream}) {
    ChannelPair pair = make_pair({.kind = kind});
    std::atomic<bool> over{false};
    std::thread other([&] {
      while (!over)
        (void)pair.worker->send({.op = Op::progress}, std::span<const std::byte>(), after(10ms));
    });
    const auto reply = client_handshake(*pair.client, scale_hello(), after(100ms));
    over = true;
    other.join();
    ASSERT_FALSE(reply.ok());
    EXPECT_NE(reply.error().message.find("before the deadline"), std::string::npos);
  }
}

TEST(Handshake, NorDoesAClientsFlood) {
  for (const AttachKind kind : {AttachKind::rings, AttachKind::stream}) {
    ChannelPair pair = make_pair({.kind = kind});
    std::atomic<bool> over{false};
    std::thread other([&] {
      Frame frame;
      while (!over) {
        (void)pair.client->send({.op = Op::ping}, std::span<const std::byte>(), after(10ms));
        (void)pair.client->receive(frame, Deadline::min());
      }
    });
    const auto agreement = worker_handshake(*pair.worker, scale_offer(), kReady, after(100ms));
    over = true;
    other.join();
    ASSERT_FALSE(agreement.ok());
    // Either for a HELLO or for room to answer.
    EXPECT_NE(agreement.error().message.find("before the deadline"), std::string::npos);
  }
}

TEST(Handshake, RowsOfOddLengthTravelInNoBlocks) {
  Hello hello = scale_hello();
  hello.in_types = hello.out_types = type_bit(WireType::int16);
  EXPECT_TRUE(std::holds_alternative<HelloAck>(judge(hello, scale_offer())));
  WorkerOffer odd = scale_offer();
  hello.dims.n_embd = odd.dims.n_embd = 40;
  EXPECT_EQ(std::get<Refuse>(judge(hello, odd)).reason, RefuseReason::types);
}

// Loading may take longer than a client bears silence, since the worker says that it loads.
TEST(Handshake, ProgressIsNoSilence) {
  constexpr auto kSilence = 3s;  // the machine may stand still for as long
  for (const AttachKind kind : {AttachKind::rings, AttachKind::stream}) {
    ChannelPair pair = make_pair({.kind = kind});
    WorkerOffer offer = scale_offer();
    offer.progress = 10ms;
    const Prepare slow = [&](const Hello&, const HelloAck&) -> Result<Prepared> {
      std::this_thread::sleep_for(kSilence + 1s);
      return Prepared{};
    };
    std::thread other([&] { (void)worker_handshake(*pair.worker, offer, slow, after(60s)); });
    EXPECT_TRUE(client_handshake(*pair.client, scale_hello(), after(60s), nullptr, kSilence).ok());
    other.join();
  }
}

// This one loads until it has been given up.
TEST(Handshake, SilenceWhileItLoadsEnds) {
  for (const AttachKind kind : {AttachKind::rings, AttachKind::stream}) {
    ChannelPair pair = make_pair({.kind = kind});
    WorkerOffer offer = scale_offer();
    offer.progress = 1h;
    std::promise<void> given_up;
    const Prepare endless = [&](const Hello&, const HelloAck&) -> Result<Prepared> {
      given_up.get_future().wait();
      return Prepared{};
    };
    std::thread other([&] { (void)worker_handshake(*pair.worker, offer, endless, after(60s)); });
    const auto reply = client_handshake(*pair.client, scale_hello(), after(60s), nullptr, 900ms);
    given_up.set_value();
    other.join();
    ASSERT_FALSE(reply.ok());
    EXPECT_EQ(reply.error().code, ErrorCode::unavailable);
    EXPECT_NE(reply.error().message.find("silent for 900 ms"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera::worker
