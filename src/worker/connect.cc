#include "worker/connect.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "worker/auth.h"
#include "worker/resolve.h"
#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

// A unix socket turns away at once who finds it full.
constexpr int kBacklog = 128;

// Of the name of a host of one's own.
constexpr auto kLookUpTime = std::chrono::seconds(30);

Result<Fd> make_socket(const Endpoint& endpoint) {
  Fd fd(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return system_error("making a socket");
  return fd;
}

// Small frames leave at once, and a host that went away is noticed without traffic.
void tune_tcp(int fd) {
  const int on = 1, idle = 5, interval = 2, probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

// 0, or an errno.
int finish_connect(const Fd& fd, const Endpoint& endpoint, Deadline deadline) {
  int code = ::connect(fd.get(), endpoint.get(), endpoint.length) == 0 ? 0 : errno;
  if (code != EINPROGRESS) return code;
  const Readiness done = wait_for(fd.get(), POLLOUT, deadline);
  socklen_t length = sizeof(code);
  if (!done.ready && !done.hung_up) return ETIMEDOUT;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) return errno;
  return code == 0 && done.hung_up ? ECONNABORTED : code;
}

Result<Fd> connect_socket(const Address& address, Deadline deadline, Interrupter* interrupter) {
  TESSERA_ASSIGN(const std::vector<Endpoint> endpoints,
                 resolve(address, EndpointUse::connect, deadline, interrupter));
  int code = 0;
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    if (interrupter != nullptr && interrupter->interrupted())
      return Error::make(ErrorCode::cancelled, "connecting to {} was ended", address.text());
    TESSERA_ASSIGN(Fd fd, make_socket(endpoints[i]));
    if (interrupter != nullptr) interrupter->watch(fd.get());
    // An address that does not answer leaves time for the others.
    const auto left = std::max(Clock::duration(0), deadline - Clock::now());
    code = finish_connect(fd, endpoints[i],
                          after(left / static_cast<std::int64_t>(endpoints.size() - i)));
    if (code != 0) continue;
    if (address.kind == Address::Kind::tcp) tune_tcp(fd.get());
    return fd;
  }
  return Error::make(ErrorCode::unavailable, "no worker at {}: {}", address.text(),
                     std::strerror(code));
}

SocketKind socket_kind(const Address& address) {
  return address.kind == Address::Kind::tcp ? SocketKind::tcp : SocketKind::unix_socket;
}

// Over a unix socket the kernel says who the peer is (of a listener who began to listen); that
// stands for the token.
Status check_user(int fd, const char* peer_is) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return system_error(fmt::format("asking for the user of {}", peer_is));
  if (peer.uid == ::geteuid() || peer.uid == 0) return {};
  return Error::make(ErrorCode::invalid,
                     "{} of user {} was refused; it must run as the same user, or as root", peer_is,
                     peer.uid);
}

Address bound_address(int fd, Address address) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (address.kind != Address::Kind::tcp ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return address;
  in_port_t port = 0;
  if (storage.ss_family == AF_INET6) {
    port = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port;
  } else {
    port = reinterpret_cast<const sockaddr_in*>(&storage)->sin_port;
  }
  address.port = std::to_string(ntohs(port));
  return address;
}

// Removes the file of a listener that is gone; one that answers is left alone.
Status clear_socket_file(const Address& address) {
  if (connect_socket(address, after(std::chrono::seconds(1)), nullptr).ok())
    return Error::make(ErrorCode::invalid, "another worker listens at {}", address.text());
  return remove_stale(address.host);
}

}  // namespace

Result<std::unique_ptr<Channel>> connect_to(const Address& address, const AttachOptions& options,
                                            Deadline deadline, Interrupter* interrupter,
                                            std::optional<Refuse>* refused) {
  if (address.kind == Address::Kind::tcp) TESSERA_TRY(check_token(options.token));
  TESSERA_ASSIGN(Fd fd, connect_socket(address, deadline, interrupter));
  if (address.kind == Address::Kind::unix_path)
    if (Status same = check_user(fd.get(), "a worker"); !same)
      return std::move(same).error().in(address.text());
  AttachOptions attach = options;
  attach.at_address = true;
  return attach_client(std::move(fd), socket_kind(address), attach, deadline, refused);
}

Result<Listener> Listener::open(const Address& address) {
  const bool tcp = address.kind == Address::Kind::tcp;
  // From the look whether somebody listens there until this one does.
  std::optional<SocketFileLock> lock;
  if (!tcp) {
    TESSERA_ASSIGN(lock, SocketFileLock::take(address.host));
    TESSERA_TRY(clear_socket_file(address));
  }
  TESSERA_ASSIGN(const std::vector<Endpoint> endpoints,
                 resolve(address, EndpointUse::listen, after(kLookUpTime), nullptr));
  const Endpoint& endpoint = endpoints.front();
  TESSERA_ASSIGN(Fd fd, make_socket(endpoint));
  const int on = 1;
  if (tcp) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), endpoint.get(), endpoint.length) != 0 || ::listen(fd.get(), kBacklog) != 0)
    return system_error("listening at " + address.text());
  const Address bound = bound_address(fd.get(), address);
  Listener listener(std::move(fd), bound);
  if (!tcp) listener.file_ = SocketFile::bound(address.host);
  return listener;
}

SocketKind Listener::kind() const {
  return socket_kind(address_);
}

Result<Fd> Listener::take(Deadline deadline) {
  for (;;) {
    Fd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      if (kind() == SocketKind::tcp) tune_tcp(fd.get());
      if (kind() == SocketKind::unix_socket) TESSERA_TRY(check_user(fd.get(), "a client"));
      return fd;
    }
    if (errno == EINVAL) return Fd();  // stop()
    const bool nobody =
        errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
    if (!nobody)
      return Error::make(ErrorCode::exhausted, "accepting a client at {}: {}", address_.text(),
                         std::strerror(errno));
    const Readiness came = wait_for(socket_.get(), POLLIN, deadline);
    // A listening socket hangs up by stop() alone.
    if (!came.ready || came.hung_up) return Fd();
  }
}

Result<std::unique_ptr<Channel>> Listener::accept(const AcceptOptions& options, Deadline deadline) {
  if (kind() == SocketKind::tcp) TESSERA_TRY(check_token(options.token));
  TESSERA_ASSIGN(Fd fd, take(deadline));
  if (!fd) return std::unique_ptr<Channel>();
  return attach_worker(std::move(fd), kind(), options, after(kAttachTime));
}

bool Listener::stopped() const {
  return wait_for(socket_.get(), 0, Deadline::min()).hung_up;
}

void Listener::stop() {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace tessera::worker
