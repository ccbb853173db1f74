// Two attached channels in one process, for tests and benchmarks.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <thread>

#include "base/check.h"
#include "worker/attach.h"

namespace tessera::worker {

struct ChannelPair {
  std::unique_ptr<Channel> client, worker;
};

inline std::pair<Fd, Fd> socket_pair() {
  int fds[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

inline ChannelPair make_pair(const AttachOptions& options,
                             SocketKind kind = SocketKind::unix_socket) {
  auto [a, b] = socket_pair();
  ChannelPair pair;
  std::thread other([&, fd = std::move(b)]() mutable {
    Result<std::unique_ptr<Channel>> made =
        attach_worker(std::move(fd), kind, {.token = options.token, .spin = options.spin},
                      after(std::chrono::seconds(10)));
    CHECK(made.ok(), "{}", made.error().message);
    pair.worker = *std::move(made);
  });
  Result<std::unique_ptr<Channel>> made =
      attach_client(std::move(a), kind, options, after(std::chrono::seconds(10)));
  CHECK(made.ok(), "{}", made.error().message);
  pair.client = *std::move(made);
  other.join();
  return pair;
}

}  // namespace tessera::worker
