#include "worker/ring_round_trip.h"

#include <sys/socket.h>

#include <system_error>
#include <thread>

#include "worker/attach.h"
#include "worker/handshake.h"
#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

void answer_pings(Fd socket, Deadline deadline) {
  const Result<std::unique_ptr<Channel>> channel =
      attach_worker(std::move(socket), SocketKind::unix_socket, {}, deadline);
  if (!channel) return;
  for (Frame frame; Clock::now() < deadline;) {
    const Result<bool> came = (*channel)->receive(frame, deadline);
    if (!came || !*came || frame.header.op != Op::ping) return;
    if (!(*channel)->send({.op = Op::pong}, deadline)) return;
  }
}

}  // namespace

Result<std::chrono::nanoseconds> ring_round_trip(Deadline deadline) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return system_error("measuring shared memory: socket pair");
  Fd mine(fds[0]), others(fds[1]);
  std::thread other;
  try {
    other = std::thread(
        [fd = std::move(others), deadline]() mutable { answer_pings(std::move(fd), deadline); });
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "measuring shared memory: no thread: {}",
                       error.what());
  }
  const auto took = [&]() -> Result<std::chrono::nanoseconds> {
    TESSERA_ASSIGN(const std::unique_ptr<Channel> channel,
                   attach_client(std::move(mine), SocketKind::unix_socket, {}, deadline));
    return client_round_trip(*channel, deadline);  // then it hangs up
  }();
  other.join();
  return took;
}

}  // namespace tessera::worker
