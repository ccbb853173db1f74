#include "worker/reception.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <mutex>
#include <new>

#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

// A connection that never says a word.
Fd connect_silently(const std::string& path) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  return fd;
}

// Threads get this much for their stack.
void set_stack_bytes(std::size_t bytes) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
  pthread_attr_destroy(&attributes);
}

// Somebody who was turned away, or lost when he had attached, keeps nobody else out.
TEST(Reception, LosesOneConnectionWhereMemoryOrThreadsRunOut) {
  const std::string path = testing::TempDir() + "tessera_reception_" + std::to_string(::getpid());
  Listener listener = *Listener::open(*Address::parse("unix:" + path));
  std::atomic<int> seen{0};
  Reception reception(listener, {}, [&](const std::unique_ptr<Channel>&) {
    if (seen++ == 0) throw std::bad_alloc();
  });
  std::thread running([&] { reception.run(); });
  const auto attaches = [&] { return connect_to(listener.address(), {}, after(60s)).ok(); };
  EXPECT_TRUE(attaches());
  pthread_attr_t usual;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  set_stack_bytes(std::size_t{1} << 50);  // more than there are addresses
  EXPECT_FALSE(attaches());
  EXPECT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_attr_destroy(&usual);
  EXPECT_TRUE(attaches());
  listener.stop();
  running.join();
}

// How long two clients take to attach among such that do not, to the end of the reception.
Clock::duration time_among_silent_ones() {
  const std::string path = testing::TempDir() + "tessera_reception_" + std::to_string(::getpid());
  Listener listener = *Listener::open(*Address::parse("unix:" + path));
  std::mutex mutex;
  std::vector<std::unique_ptr<Channel>> attached;
  Reception reception(listener, {}, [&](std::unique_ptr<Channel> client) {
    const std::lock_guard lock(mutex);
    attached.push_back(std::move(client));
  });
  std::thread running([&] { reception.run(); });
  const Deadline begin = Clock::now();
  std::vector<Fd> silent;
  for (std::size_t i = 0; i < 3 * kMostAttaching; ++i) silent.push_back(connect_silently(path));
  for (int i = 0; i < 2; ++i) {
    const auto client = connect_to(listener.address(), {}, after(60s));
    EXPECT_TRUE(client.ok()) << client.error().message;
  }
  listener.stop();
  running.join();
  return Clock::now() - begin;
}

// Of some tries one is enough, since the machine may be busy.
TEST(Reception, SilentConnectionsKeepNobodyWaiting) {
  Clock::duration best = Clock::duration::max();
  for (int i = 0; i < 10 && best >= kAttachTime; ++i)
    best = std::min(best, time_among_silent_ones());
  EXPECT_LT(best, kAttachTime);
}

// From that address of this machine.
Fd connect_silently_from(std::uint32_t host, const Address& to) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(host);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(static_cast<std::uint16_t>(std::stoi(to.port)));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  return fd;
}

bool was_ended(const Fd& fd, Deadline until) {
  char byte;
  const Readiness now = wait_for(fd.get(), POLLIN, until);
  return (now.ready || now.hung_up) && ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) <= 0;
}

// Those of whoever connects again and again are ended, a client of another host's is not.
bool attaches_among_others() {
  Listener listener = *Listener::open(*Address::parse("tcp:127.0.0.1:0"));
  const std::string token(32, 't');
  Reception reception(listener, {.token = token}, [](const std::unique_ptr<Channel>&) {});
  std::thread running([&] { reception.run(); });
  const Deadline begin = Clock::now();
  Fd client = connect_silently_from(INADDR_LOOPBACK, listener.address());
  std::vector<Fd> others;
  for (std::size_t i = 0; i < 3 * kMostAttaching; ++i)
    others.push_back(connect_silently_from(INADDR_LOOPBACK + 1, listener.address()));
  for (std::size_t i = 0; i < 2 * kMostAttaching; ++i)
    EXPECT_TRUE(was_ended(others[i], after(60s))) << i;
  const bool in_time = Clock::now() - begin < kAttachTime / 2;
  const auto attached = attach_client(std::move(client), SocketKind::tcp,
                                      {.kind = AttachKind::stream, .token = token}, after(60s));
  listener.stop();
  running.join();
  return in_time && attached.ok();
}

// Of some tries one is enough, since the machine may be busy.
TEST(Reception, ConnectionsOfOneHostCostThatHostItsPlaces) {
  bool attached = false;
  for (int i = 0; i < 10 && !attached; ++i) attached = attaches_among_others();
  EXPECT_TRUE(attached);
}

// While it is told that somebody else is served, say.
TEST(Reception, WhoHasAttachedIsNotEnded) {
  const std::string path = testing::TempDir() + "tessera_reception_" + std::to_string(::getpid());
  Listener listener = *Listener::open(*Address::parse("unix:" + path));
  std::promise<void> go_on;
  Reception reception(listener, {}, [&](const std::unique_ptr<Channel>& client) {
    go_on.get_future().wait();
    EXPECT_TRUE(client->send({.op = Op::pong}, after(60s)).ok());
  });
  std::thread running([&] { reception.run(); });
  const auto client = connect_to(listener.address(), {}, after(60s));
  ASSERT_TRUE(client.ok()) << client.error().message;
  std::vector<Fd> silent;
  for (std::size_t i = 0; i < 2 * kMostAttaching; ++i) silent.push_back(connect_silently(path));
  EXPECT_TRUE(was_ended(silent.front(), after(60s)));
  go_on.set_value();
  Frame frame;
  const Result<bool> came = (*client)->receive(frame, after(60s));
  EXPECT_TRUE(came.ok() && *came);
  listener.stop();
  running.join();
}

}  // namespace
}  // namespace tessera::worker
