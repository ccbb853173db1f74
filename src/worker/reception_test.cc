#include "worker/reception.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <mutex>

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

TEST(Reception, SilentConnectionsKeepNobodyWaiting) {
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
    const auto client = connect_to(listener.address(), {}, after(4s));
    ASSERT_TRUE(client.ok()) << client.error().message;
  }
  EXPECT_LT(Clock::now() - begin, 4s);
  listener.stop();
  running.join();
  EXPECT_LT(Clock::now() - begin, 4s);
}

}  // namespace
}  // namespace tessera::worker
