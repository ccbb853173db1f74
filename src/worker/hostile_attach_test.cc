// Peers that lie while attaching: about the memory that they hand over, the protocol, and who they
// are.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <string>
#include <thread>

#include "worker/auth.h"
#include "worker/channel_pair.h"
#include "worker/connect.h"
#include "worker/raw_frames.h"
#include "worker/stream_channel.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

Attach ring_attach() {
  return {
      .kind = AttachKind::rings, .region_id = 7, .to_worker_bytes = 4096, .to_client_bytes = 4096};
}

TEST(StaleMemory, AnotherRegionIsRefused) {
  Fd memory;
  const RingMemory made = *RingMemory::create({4096, 4096}, 8, memory);
  EXPECT_FALSE(RingMemory::open(ring_attach(), memory).ok());
}

TEST(StaleMemory, MemoryThatNobodyHasTakenIsRefused) {
  const Fd memory(::memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Fd made;
  { const RingMemory sized = *RingMemory::create({4096, 4096}, 7, made); }
  struct stat status {};
  ASSERT_EQ(::fstat(made.get(), &status), 0);
  ASSERT_EQ(::ftruncate(memory.get(), status.st_size), 0);
  ASSERT_EQ(::pwrite(memory.get(), "\7", 1, 0), 1);  // the region's id
  ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  const auto opened = RingMemory::open(ring_attach(), memory);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("not backed"), std::string::npos);
}

TEST(StaleMemory, UsedMemoryIsRefused) {
  Fd memory;
  RingMemory made = *RingMemory::create({4096, 4096}, 7, memory);
  made.to_client().words->consumed.store(1);
  EXPECT_FALSE(RingMemory::open(ring_attach(), memory).ok());
}

TEST(StaleMemory, AnotherSizeIsRefused) {
  Fd memory;
  const RingMemory made = *RingMemory::create({4096, 8192}, 7, memory);
  EXPECT_FALSE(RingMemory::open(ring_attach(), memory).ok());
  Attach odd = ring_attach();
  odd.to_worker_bytes = 100;
  EXPECT_FALSE(RingMemory::open(odd, memory).ok());
  EXPECT_FALSE(RingMemory::open(ring_attach(), Fd()).ok());
}

TEST(StaleMemory, MemoryThatCouldShrinkOrGrowIsRefused) {
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW}) {
    const Fd memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(memory.get(), 32768), 0);
    ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, seals), 0);
    const auto opened = RingMemory::open(ring_attach(), memory);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("not sealed"), std::string::npos);
  }
  std::FILE* file = std::tmpfile();  // and a file, which cannot be sealed at all
  EXPECT_FALSE(RingMemory::open(ring_attach(), Fd(::dup(::fileno(file)))).ok());
  std::fclose(file);
}

TEST(Attaching, ArenasAreBounded) {
  auto [a, b] = socket_pair();
  std::thread client([fd = std::move(a)]() mutable {
    const auto made =
        attach_client(std::move(fd), SocketKind::unix_socket,
                      {.to_worker_bytes = 1 << 24, .to_client_bytes = 4096}, after(60s));
    EXPECT_NE(made.error().message.find("limits"), std::string::npos);
  });
  EXPECT_FALSE(
      attach_worker(std::move(b), SocketKind::unix_socket, {.max_arena_bytes = 1 << 20}, after(60s))
          .ok());
  client.join();
}

TEST(Attaching, OtherFramesAndSilence) {
  auto [a, b] = socket_pair();
  write_all(a, encoded({.op = Op::ping}));
  EXPECT_FALSE(attach_worker(std::move(b), SocketKind::unix_socket, {}, after(1s)).ok());
  auto [c, d] = socket_pair();
  EXPECT_FALSE(attach_worker(std::move(d), SocketKind::unix_socket, {}, after(20ms)).ok());
}

// A server of HTTP waits for the end of a line, or of the lines before a body.
TEST(Attaching, AServerOfHttpAnswersAtOnce) {
  for (const AttachKind kind : {AttachKind::stream, AttachKind::rings}) {
    auto [a, b] = socket_pair();
    std::thread server([fd = std::move(b)] {
      std::string got;
      for (char c; got.find("\r\n\r\n") == got.npos && ::read(fd.get(), &c, 1) == 1;) got += c;
      write_all(fd, std::as_bytes(std::span("HTTP/1.1 400 Bad Request\r\n")));
    });
    const auto made = attach_client(std::move(a), SocketKind::unix_socket,
                                    {.kind = kind, .at_address = true}, after(60s));
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, ErrorCode::invalid);
    EXPECT_EQ(made.error().message,
              "unix stream: it speaks HTTP and not the worker protocol; if that is no tessera "
              "worker, give the address of one (tessera worker --listen ADDRESS)");
    server.join();
  }
}

TEST(Attaching, RingsWithoutMemory) {
  auto [a, b] = socket_pair();
  const std::vector<std::byte> body = encode(ring_attach());
  write_all(a, encoded({.op = Op::attach, .body_bytes = body.size()}));
  write_all(a, body);
  EXPECT_FALSE(attach_worker(std::move(b), SocketKind::unix_socket, {}, after(1s)).ok());
}

const std::string kAttachToken = "a token for the tests";

// What each end says when the two tokens differ.
std::pair<std::string, std::string> attach_with(const std::string& client_token,
                                                const std::string& worker_token) {
  auto [a, b] = socket_pair();
  std::string client_said = "ok", worker_said = "ok";
  std::thread client([&, fd = std::move(a)]() mutable {
    const auto made =
        attach_client(std::move(fd), SocketKind::tcp, {.token = client_token}, after(60s));
    if (!made) client_said = made.error().message;
  });
  const auto made =
      attach_worker(std::move(b), SocketKind::tcp, {.token = worker_token}, after(60s));
  if (!made) worker_said = made.error().message;
  client.join();
  return {client_said, worker_said};
}

TEST(Token, BothEndsMustKnowIt) {
  EXPECT_EQ(attach_with(kAttachToken, kAttachToken),
            std::pair(std::string("ok"), std::string("ok")));
  const auto [client, worker] = attach_with(kAttachToken, "another token of theirs");
  EXPECT_NE(client.find("authentication"), std::string::npos) << client;
  EXPECT_NE(worker.find("does not know the token"), std::string::npos) << worker;
}

TEST(Token, ShortOnesAreRefusedAtBothEnds) {
  const auto [client, worker] = attach_with("short", "short");
  EXPECT_NE(client.find("at least 16 bytes"), std::string::npos);
  EXPECT_NE(worker.find("at least 16 bytes"), std::string::npos);
}

TEST(Token, ProofsDependOnEverything) {
  const Nonce a = random_nonce(), b = random_nonce();
  const Proof proof = make_proof(kAttachToken, ProofOf::client, a, b);
  EXPECT_TRUE(same_proof(proof, make_proof(kAttachToken, ProofOf::client, a, b)));
  EXPECT_FALSE(same_proof(proof, make_proof(kAttachToken, ProofOf::worker, a, b)));
  EXPECT_FALSE(same_proof(proof, make_proof(kAttachToken, ProofOf::client, b, a)));
  EXPECT_FALSE(same_proof(proof, make_proof(kAttachToken + "x", ProofOf::client, a, b)));
  EXPECT_FALSE(same_proof(proof, std::span(proof).first(31)));
  EXPECT_FALSE(same_proof(proof, {}));
}

TEST(Token, AWorkerWithoutProofIsRefused) {
  auto [a, b] = socket_pair();
  std::thread impostor([fd = std::move(b)]() mutable {
    auto channel = *StreamChannel::adopt(std::move(fd), "impostor");
    Frame frame;
    ASSERT_TRUE(*channel->receive(frame, after(60s)));
    ASSERT_TRUE(channel->send({.op = Op::challenge}, random_nonce(), after(60s)).ok());
    ASSERT_TRUE(*channel->receive(frame, after(60s)));
    ASSERT_TRUE(channel->send({.op = Op::attached}, after(60s)).ok());
  });
  const auto made =
      attach_client(std::move(a), SocketKind::tcp, {.token = kAttachToken}, after(60s));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("does not know the token"), std::string::npos);
  impostor.join();
}

}  // namespace
}  // namespace tessera::worker
