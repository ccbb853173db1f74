// Peers that lie once they are attached: through a stream and through shared memory.
// hostile_attach_test.cc has those that lie before.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "worker/byte_codec.h"
#include "worker/channel_pair.h"
#include "worker/raw_frames.h"
#include "worker/stream_channel.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

std::uint32_t sum_of(const std::vector<std::byte>& body) {
  const std::span<const std::byte> part = body;
  return body_sum(Parts(&part, 1));
}

struct RawStream {
  RawStream() {
    auto [a, b] = socket_pair();
    raw = std::move(a);
    channel = *StreamChannel::adopt(std::move(b), "test stream");
  }
  void write(const Raw& header, std::span<const std::byte> body) {
    write_all(raw, header);
    write_all(raw, body);
  }
  Fd raw;
  std::unique_ptr<StreamChannel> channel;
  Frame frame;
};

TEST(HostileStream, ByteByByteWithDeadlines) {
  RawStream s;
  std::vector<std::byte> bytes;
  const std::vector<std::byte> body = encode(Stats{.jobs = 9});
  const Raw header =
      encoded({.op = Op::stats, .body_bytes = body.size(), .body_sum = sum_of(body)});
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.insert(bytes.end(), body.begin(), body.end());
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      Frame other;  // another frame each time: the place in the stream is the channel's
      ASSERT_FALSE(*s.channel->receive(other, Deadline::min()));
      write_all(s.raw, std::span(bytes).subspan(i, 1));
    }
    ASSERT_TRUE(*s.channel->receive(s.frame, after(60s)));
    EXPECT_EQ(decode_stats(s.frame.body())->jobs, 9u);
  }
}

TEST(HostileStream, CorruptHeaders) {
  for (int kind = 0; kind < 4; ++kind) {
    RawStream s;
    Raw raw = encoded({.op = Op::hello, .body_bytes = 200});
    if (kind == 0) raw[17] ^= std::byte{1};                                   // checksum
    if (kind == 1) std::memcpy(raw.data(), "GET / HTTP/1.1\r\n", 16);         // another protocol
    if (kind == 2) raw = encoded({.op = Op::hello, .body_bytes = 1u << 30});  // too long
    if (kind == 3) raw = encoded({.op = static_cast<Op>(500), .body_bytes = 1u << 30});
    write_all(s.raw, raw);
    const Result<bool> came = s.channel->receive(s.frame, after(60s));
    ASSERT_FALSE(came.ok());
    EXPECT_EQ(came.error().code, ErrorCode::invalid);
    EXPECT_TRUE(s.channel->closed());
    char byte;
    EXPECT_EQ(::read(s.raw.get(), &byte, 1), 0) << "the peer is told";
  }
}

// Before a whole header has come, whose rest may never come.
TEST(HostileStream, AnotherProtocolShowsInItsFirstBytes) {
  for (const auto& [text, says] :
       {std::pair<std::string, std::string>{"HTTP/1.1 400 Bad Request\r\n", "it speaks HTTP"},
        {"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP"},
        {"SSH-2.0-OpenSSH\r\n", "first bytes 53 53 48 2d"},
        {"\x15", "first bytes 15"}}) {
    RawStream s;
    write_all(s.raw, std::as_bytes(std::span(text)));
    const Result<bool> came = s.channel->receive(s.frame, after(60s));
    ASSERT_FALSE(came.ok()) << text;
    EXPECT_EQ(came.error().code, ErrorCode::invalid);
    EXPECT_NE(came.error().message.find(says), std::string::npos) << came.error().message;
  }
}

// So that it is told in the handshake what is wrong.
TEST(HostileStream, BodiesOfEarlierVersionsAreReceived) {
  RawStream s;
  const std::vector<std::byte> body = encode(Stats{.jobs = 9});
  s.write(encoded({.version = 4, .op = Op::stats, .body_bytes = body.size(), .body_sum = 1}), body);
  ASSERT_TRUE(*s.channel->receive(s.frame, after(60s)));
  s.channel->set_limits({.version = kVersionMax});
  write_all(s.raw, encoded({.version = 4, .op = Op::stats, .body_bytes = body.size()}));
  EXPECT_FALSE(s.channel->receive(s.frame, after(1s)).ok()) << "not after it";
}

TEST(HostileStream, UnknownOpsAreSkipped) {
  RawStream s;
  const std::vector<std::byte> body(5);
  write_all(s.raw, encoded({.op = static_cast<Op>(500),
                            .sequence = 4,
                            .body_bytes = body.size(),
                            .body_sum = sum_of(body)}));
  write_all(s.raw, body);
  write_all(s.raw, encoded({.op = Op::ping, .sequence = 5}));
  ASSERT_TRUE(*s.channel->receive(s.frame, after(60s)));
  EXPECT_FALSE(known_op(s.frame.header.op));
  ASSERT_TRUE(*s.channel->receive(s.frame, after(60s)));
  EXPECT_EQ(s.frame.header.sequence, 5u);
}

TEST(HostileStream, EndsInsideAFrame) {
  RawStream s;
  const Raw raw = encoded({.op = Op::ping});
  write_all(s.raw, std::span(raw).first(30));
  s.raw.reset();
  EXPECT_EQ(s.channel->receive(s.frame, after(1s)).error().code, ErrorCode::unavailable);
}

TEST(HostileStream, ADescriptorThatNobodyAskedForIsClosed) {
  auto [a, b] = socket_pair();
  auto sender = *StreamChannel::adopt(std::move(a), "a");
  auto receiver = *StreamChannel::adopt(std::move(b), "b");
  auto [kept, given] = socket_pair();
  ASSERT_TRUE(sender->send_with_descriptor({.op = Op::ping}, {}, given.get(), after(60s)).ok());
  given.reset();
  Frame frame;
  ASSERT_TRUE(*receiver->receive(frame, after(60s)));
  char byte;
  EXPECT_EQ(::read(kept.get(), &byte, 1), 0);
}

// The worker's channel over memory whose other mapping the test holds.
struct RawRings {
  RawRings() {
    Fd memory;
    const RingMemory::Sizes sizes{1 << 16, 1 << 16};
    mine.emplace(*RingMemory::create(sizes, 7, memory));
    RingMemory theirs = *RingMemory::open({.kind = AttachKind::rings,
                                           .region_id = 7,
                                           .to_worker_bytes = 1 << 16,
                                           .to_client_bytes = 1 << 16},
                                          memory);
    auto [a, b] = socket_pair();
    socket = std::move(a);
    channel = std::make_unique<RingChannel>(std::move(b), std::move(theirs), RingEnd::worker,
                                            SpinOptions{});
  }
  // The first frame.
  void write(const Raw& header, std::span<const std::byte> body) {
    const RingView ring = mine->to_worker();
    std::copy(header.begin(), header.end(), ring.headers);
    std::copy(body.begin(), body.end(), ring.arena);
    ring.words->produced.store(1);
  }
  void expect_broken() {
    const Result<bool> came = channel->receive(frame, after(60s));
    ASSERT_FALSE(came.ok());
    EXPECT_EQ(came.error().code, ErrorCode::invalid) << came.error().message;
    EXPECT_TRUE(channel->closed());
  }
  std::optional<RingMemory> mine;
  Fd socket;
  std::unique_ptr<RingChannel> channel;
  Frame frame;
};

template <typename Peer>
class HostileBody : public testing::Test {};
using Peers = testing::Types<RawStream, RawRings>;
TYPED_TEST_SUITE(HostileBody, Peers);

TYPED_TEST(HostileBody, EveryFlippedBitIsFound) {
  const std::vector<std::byte> good = encode(Stats{.jobs = 9});
  const Raw header =
      encoded({.op = Op::stats, .body_bytes = good.size(), .body_sum = sum_of(good)});
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    TypeParam peer;
    std::vector<std::byte> body = good;
    body[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    peer.write(header, body);
    const Result<bool> came = peer.channel->receive(peer.frame, after(60s));
    ASSERT_FALSE(came.ok()) << bit;
    EXPECT_EQ(came.error().code, ErrorCode::invalid);
    EXPECT_TRUE(peer.channel->closed());
  }
}

TEST(HostileRings, WildProducedIndex) {
  for (const std::uint32_t value : {65u, 1000u, 0x80000000u, 0xffffffffu}) {
    RawRings r;
    r.mine->to_worker().words->produced.store(value);
    r.expect_broken();
  }
}

TEST(HostileRings, WildConsumedIndex) {
  for (const std::uint32_t value : {2u, 0xffffffffu, 0x7fffffffu}) {
    RawRings r;
    ASSERT_TRUE(r.channel->send({.op = Op::ping}, after(60s)).ok());
    r.mine->to_client().words->consumed.store(value);
    const Status status = r.channel->send({.op = Op::ping}, after(60s));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::invalid);
    EXPECT_TRUE(r.channel->closed());
  }
}

TEST(HostileRings, ConsumedIndexThatGoesBack) {
  RawRings r;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(r.channel->send({.op = Op::ping}, after(60s)).ok());
  r.mine->to_client().words->consumed.store(2);
  ASSERT_TRUE(r.channel->send({.op = Op::ping}, after(60s)).ok());
  r.mine->to_client().words->consumed.store(1);
  EXPECT_EQ(r.channel->send({.op = Op::ping}, after(1s)).error().code, ErrorCode::invalid);
}

TEST(HostileRings, CorruptHeader) {
  RawRings r;  // a header of zeros
  r.mine->to_worker().words->produced.store(1);
  r.expect_broken();
}

TEST(HostileRings, BodyLongerThanTheArena) {
  RawRings r;
  r.write(encoded({.op = Op::hello, .body_bytes = (1 << 16) + 64}), {});
  r.expect_broken();
}

TEST(HostileRings, WakesWithoutFrames) {
  RawRings r;
  std::atomic<bool> over{false};
  std::thread peer([&] {
    while (!over) rouse_both(*r.mine->to_worker().words);
  });
  EXPECT_FALSE(*r.channel->receive(r.frame, after(20ms)));
  over = true;
  peer.join();
  EXPECT_FALSE(r.channel->closed());
}

// It could wake nobody.
TEST(HostileRings, TheEndOfAKilledPeerWakesASleeper) {
  RawRings r;
  std::thread kill([&] {
    std::this_thread::sleep_for(5ms);
    r.socket.reset();
  });
  const Result<bool> came = r.channel->receive(r.frame, after(60s));
  kill.join();
  ASSERT_FALSE(came.ok());
  EXPECT_EQ(came.error().code, ErrorCode::unavailable);
}

TEST(HostileRings, IndicesWrapAround) {
  ChannelPair pair = make_pair({.to_worker_bytes = 4096, .to_client_bytes = 4096});
  Frame frame;
  for (std::uint64_t i = 0; i < 70'000; ++i) {
    ASSERT_TRUE(pair.client->send({.op = Op::ping, .sequence = i}, after(60s)).ok());
    ASSERT_TRUE(*pair.worker->receive(frame, after(60s)));
    ASSERT_EQ(frame.header.sequence, i);
  }
}

}  // namespace
}  // namespace tessera::worker
