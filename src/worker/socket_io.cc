#include "worker/socket_io.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <ctime>
#include <system_error>

namespace tessera::worker {

Readiness wait_for(int fd, short events, Deadline deadline) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  for (;;) {
    const Deadline now = Clock::now();
    const std::int64_t ns = deadline <= now ? 0 : std::chrono::nanoseconds(deadline - now).count();
    const timespec timeout{.tv_sec = static_cast<time_t>(ns / 1'000'000'000),
                           .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
    const int n = ::ppoll(&entry, 1, &timeout, nullptr);
    if (n < 0 && errno == EINTR) continue;
    const short seen = n > 0 ? entry.revents : short{0};
    return {.ready = (seen & events) != 0, .hung_up = (seen & (POLLHUP | POLLERR | POLLNVAL)) != 0};
  }
}

Error system_error(std::string_view what) {
  return system_error(what, errno);
}

Error system_error(std::string_view what, int code) {
  return Error::make(ErrorCode::io, "{}: {}{}", what,
                     std::error_code(code, std::generic_category()).message(),
                     code == EMFILE ? "; raise the limit of open files (ulimit -n)" : "");
}

Status set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return system_error("making a socket non-blocking");
  return {};
}

}  // namespace tessera::worker
