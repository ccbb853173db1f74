#include "worker/connect.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

const std::string kToken = "a token for the tests";

TEST(Address, Parses) {
  const Address unix_address = *Address::parse("unix:/run/w.sock");
  EXPECT_EQ(unix_address.kind, Address::Kind::unix_path);
  EXPECT_EQ(unix_address.host, "/run/w.sock");
  const Address tcp = *Address::parse("tcp:gpu2.lan:7000");
  EXPECT_EQ(tcp.host, "gpu2.lan");
  EXPECT_EQ(tcp.port, "7000");
  EXPECT_EQ(Address::parse("tcp:[::1]:7")->host, "::1");
  for (const char* text : {"unix:/run/w.sock", "tcp:gpu2.lan:7000", "tcp:[::1]:7"})
    EXPECT_EQ(Address::parse(text)->text(), text);
}

TEST(Address, RefusesOthers) {
  for (const std::string text :
       {"", "unix:", "unix:relative", "tcp:", "tcp:host", "tcp::7", "tcp:host:", "tcp:host:70000",
        "tcp:host:7x", "tcp:host:-1", "tcp:::1:7", "http://host", "host:7", "tcp:[]:7"})
    EXPECT_FALSE(Address::parse(text).ok()) << text;
  EXPECT_FALSE(Address::parse("unix:/" + std::string(200, 'a')).ok());
}

class Listening : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_worker_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    address_ = *Address::parse("unix:" + folder_ + "/socket");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
  Address address_;
};

void expect_ping(Channel& from, Channel& to, std::uint64_t sequence) {
  Frame frame;
  ASSERT_TRUE(from.send({.op = Op::ping, .sequence = sequence}, after(60s)).ok());
  ASSERT_TRUE(*to.receive(frame, after(60s)));
  EXPECT_EQ(frame.header.sequence, sequence);
}

TEST_F(Listening, TwoClientsByUnixSocket) {
  Listener listener = *Listener::open(address_);
  EXPECT_EQ(*listener.accept({}, Deadline::min()), nullptr);
  std::unique_ptr<Channel> clients[2], workers[2];
  for (int i = 0; i < 2; ++i) {
    std::thread client([&] {
      clients[i] = *connect_to(address_, {.kind = i == 0 ? AttachKind::stream : AttachKind::rings},
                               after(60s));
    });
    workers[i] = *listener.accept({}, after(60s));
    client.join();
    ASSERT_NE(workers[i], nullptr);
  }
  EXPECT_EQ(clients[0]->describe(), "unix stream");
  EXPECT_EQ(clients[1]->describe(), "shared rings");
  for (int i = 0; i < 2; ++i) expect_ping(*clients[i], *workers[i], 10u + static_cast<unsigned>(i));
  workers[0].reset();
  expect_ping(*workers[1], *clients[1], 5);
}

TEST_F(Listening, SocketFiles) {
  {
    const Listener first = *Listener::open(address_);
    EXPECT_FALSE(Listener::open(address_).ok()) << "somebody listens there";
  }
  EXPECT_FALSE(std::filesystem::exists(address_.host)) << "removed with its listener";
  EXPECT_FALSE(connect_to(address_, {}, after(1s)).ok());
  std::ofstream(address_.host) << "text";
  EXPECT_FALSE(Listener::open(address_).ok()) << "not ours to remove";
}

TEST_F(Listening, ALeftOverSocketFileIsReplaced) {
  const std::string aside = folder_ + "/aside";
  {
    const Listener first = *Listener::open(address_);
    std::filesystem::rename(address_.host, aside);
  }
  std::filesystem::rename(aside, address_.host);
  EXPECT_TRUE(Listener::open(address_).ok());
}

TEST_F(Listening, TheFileOfWhoCameSinceIsLeft) {
  const std::string aside = folder_ + "/aside";
  std::optional<Listener> first = *Listener::open(address_);
  std::filesystem::rename(address_.host, aside);
  const Listener second = *Listener::open(address_);
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(address_.host));
  std::filesystem::remove(aside);
}

// Neither removes the file of the other, which has begun to listen.
TEST_F(Listening, OfTwoWhoStartAtATimeOneListens) {
  const std::string aside = folder_ + "/aside";
  for (int round = 0; round < 100; ++round) {
    {
      const Listener gone = *Listener::open(address_);
      std::filesystem::rename(address_.host, aside);
    }
    std::filesystem::rename(aside, address_.host);
    std::optional<Listener> listeners[2];
    const auto start = [&](int i) {
      Result<Listener> made = Listener::open(address_);
      if (made) listeners[i] = *std::move(made);
    };
    std::thread other([&] { start(1); });
    start(0);
    other.join();
    ASSERT_NE(listeners[0].has_value(), listeners[1].has_value()) << round;
    const std::size_t one = listeners[0] ? 0 : 1;
    std::thread client([&] { EXPECT_TRUE(connect_to(address_, {}, after(60s)).ok()) << round; });
    // The other has asked whether anybody is there, and gone.
    for (bool came = false; !came;) {
      const auto channel = listeners[one]->accept({}, after(60s));
      came = channel.ok();
    }
    client.join();
  }
}

// Does it in a process of user nobody; its exit status says how that went.
template <typename Body>
pid_t as_nobody(Body body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  constexpr uid_t kNobody = 65534;
  ::_exit(::setuid(kNobody) == 0 && body() ? 0 : 1);
}

bool went_well(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class AnotherUser : public Listening {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user too";
    Listening::SetUp();
    ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  }
};

TEST_F(AnotherUser, IsRefusedAsAWorker) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = as_nobody([&] {
    Result<Listener> listener = Listener::open(address_);
    (void)!::write(ready[1], "", 1);
    if (!listener) return false;
    return !listener->accept({}, after(60s)).ok();  // the client went before it attached
  });
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto channel = connect_to(address_, {}, after(60s));
  ASSERT_FALSE(channel.ok());
  EXPECT_EQ(channel.error().code, ErrorCode::invalid);
  EXPECT_NE(channel.error().message.find("a worker of user 65534"), std::string::npos)
      << channel.error().message;
  EXPECT_TRUE(went_well(child));
  ::close(ready[0]);
  ::close(ready[1]);
}

// Root may; the other way round the client's own check is what holds.
TEST_F(AnotherUser, IsRefusedAsAClient) {
  const pid_t worker = as_nobody([&] {
    Result<Listener> listener = Listener::open(address_);
    if (!listener) return false;
    const auto channel = listener->accept({}, after(60s));
    return channel.ok() && *channel != nullptr;
  });
  const pid_t client = as_nobody([&] {
    for (const Deadline end = after(60s); Clock::now() < end; std::this_thread::sleep_for(5ms))
      if (connect_to(address_, {}, after(60s)).ok()) return true;
    return false;
  });
  EXPECT_TRUE(went_well(client)) << "two of the same user";
  EXPECT_TRUE(went_well(worker));
  Listener listener = *Listener::open(address_);
  ASSERT_EQ(::chmod(address_.host.c_str(), 0777), 0);
  const pid_t stranger = as_nobody([&] { return !connect_to(address_, {}, after(60s)).ok(); });
  const auto accepted = listener.accept({}, after(60s));
  ASSERT_FALSE(accepted.ok());
  EXPECT_NE(accepted.error().message.find("a client of user 65534"), std::string::npos)
      << accepted.error().message;
  EXPECT_TRUE(went_well(stranger));
}

TEST(ListeningTcp, WithTokens) {
  Listener listener = *Listener::open(*Address::parse("tcp:127.0.0.1:0"));
  EXPECT_NE(listener.address().port, "0");
  EXPECT_FALSE(listener.accept({}, Deadline::min()).ok()) << "no token, no tcp";
  EXPECT_FALSE(connect_to(listener.address(), {}, after(60s)).ok());
  std::unique_ptr<Channel> client;
  std::thread other([&] {
    EXPECT_FALSE(connect_to(listener.address(), {.token = "of somebody else"}, after(60s)).ok());
    client = *connect_to(listener.address(), {.token = kToken}, after(60s));
  });
  EXPECT_FALSE(listener.accept({.token = kToken}, after(60s)).ok());
  const std::unique_ptr<Channel> worker = *listener.accept({.token = kToken}, after(60s));
  other.join();
  ASSERT_NE(worker, nullptr);
  EXPECT_EQ(worker->describe(), "tcp stream");
  expect_ping(*client, *worker, 1);
  expect_ping(*worker, *client, 2);
}

TEST(ListeningTcp, ARefusalSaysWhyInWordsAndAsAValue) {
  Listener listener = *Listener::open(*Address::parse("tcp:127.0.0.1:0"));
  std::optional<Refuse> refused;
  std::thread other([&] {
    const auto client = connect_to(listener.address(), {.token = "of somebody else"}, after(60s),
                                   nullptr, &refused);
    ASSERT_FALSE(client.ok());
    EXPECT_EQ(client.error().code, ErrorCode::invalid);
    EXPECT_NE(client.error().message.find("(authentication: give both"), std::string::npos)
        << client.error().message;
  });
  Refusals refusals;
  EXPECT_FALSE(listener.accept({.token = kToken, .refusals = &refusals}, after(60s)).ok());
  other.join();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->reason, RefuseReason::authentication);
  EXPECT_EQ(refusals.text(), "1 authentication");
}

// The name has an address of each family, and the worker listens at one of them.
TEST(ListeningTcp, EachAddressOfANameIsTried) {
  Listener listener = *Listener::open(*Address::parse("tcp:127.0.0.1:0"));
  const Address name = *Address::parse("tcp:localhost:" + listener.address().port);
  std::unique_ptr<Channel> client;
  std::thread other([&] { client = *connect_to(name, {.token = kToken}, after(60s)); });
  const std::unique_ptr<Channel> worker = *listener.accept({.token = kToken}, after(60s));
  other.join();
  ASSERT_NE(worker, nullptr);
  expect_ping(*client, *worker, 1);
}

TEST(ListeningTcp, AnInterruptedClientDoesNotWait) {
  Listener silent = *Listener::open(*Address::parse("tcp:127.0.0.1:0"));
  Interrupter interrupter;
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);
    interrupter.interrupt();
  });
  const Deadline begin = Clock::now();
  EXPECT_FALSE(connect_to(silent.address(), {.token = kToken}, after(1h), &interrupter).ok());
  EXPECT_LT(Clock::now() - begin, 30min);
  other.join();
  EXPECT_FALSE(connect_to(silent.address(), {.token = kToken}, after(1h), &interrupter).ok());
  EXPECT_LT(Clock::now() - begin, 30min);
}

TEST(ListeningTcp, NobodyThere) {
  Address address;
  { address = Listener::open(*Address::parse("tcp:127.0.0.1:0"))->address(); }
  const auto made = connect_to(address, {.token = kToken}, after(60s));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::unavailable);
}

}  // namespace
}  // namespace tessera::worker
