#include "worker/connect.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "worker/auth.h"
#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Endpoint unix_endpoint(const std::string& path) {
  Endpoint endpoint;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  std::memcpy(&endpoint.storage, &name, sizeof(name));
  endpoint.length = sizeof(name);
  return endpoint;
}

Result<Endpoint> resolve(const Address& address, int flags) {
  if (address.kind == Address::Kind::unix_path) return unix_endpoint(address.host);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (code != 0)
    return Error::make(ErrorCode::not_found, "{}: {}", address.text(), ::gai_strerror(code));
  Endpoint endpoint;
  endpoint.length = found->ai_addrlen;
  std::memcpy(&endpoint.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return endpoint;
}

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

Result<Fd> connect_socket(const Address& address, Deadline deadline) {
  TESSERA_ASSIGN(const Endpoint endpoint, resolve(address, 0));
  TESSERA_ASSIGN(Fd fd, make_socket(endpoint));
  int code = ::connect(fd.get(), endpoint.get(), endpoint.length) == 0 ? 0 : errno;
  if (code == EINPROGRESS) {
    const Readiness done = wait_for(fd.get(), POLLOUT, deadline);
    socklen_t length = sizeof(code);
    if (!done.ready && !done.hung_up) {
      code = ETIMEDOUT;
    } else if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) {
      code = errno;
    }
  }
  if (code != 0)
    return Error::make(ErrorCode::unavailable, "no worker at {}: {}", address.text(),
                       std::strerror(code));
  if (address.kind == Address::Kind::tcp) tune_tcp(fd.get());
  return fd;
}

SocketKind socket_kind(const Address& address) {
  return address.kind == Address::Kind::tcp ? SocketKind::tcp : SocketKind::unix_socket;
}

// Over a unix socket the kernel says who the peer is; that stands for the token.
Status check_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return system_error("asking for the user of a client");
  if (peer.uid == ::geteuid() || peer.uid == 0) return {};
  return Error::make(ErrorCode::invalid, "a client of user {} was refused", peer.uid);
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
  struct stat status {};
  if (::lstat(address.host.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode))
    return Error::make(ErrorCode::invalid, "{} exists and is not a socket", address.host);
  if (connect_socket(address, after(std::chrono::seconds(1))).ok())
    return Error::make(ErrorCode::invalid, "another worker listens at {}", address.text());
  if (::unlink(address.host.c_str()) != 0) return system_error("removing " + address.host);
  return {};
}

}  // namespace

Result<std::unique_ptr<Channel>> connect_to(const Address& address, const AttachOptions& options,
                                            Deadline deadline) {
  if (address.kind == Address::Kind::tcp) TESSERA_TRY(check_token(options.token));
  TESSERA_ASSIGN(Fd fd, connect_socket(address, deadline));
  return attach_client(std::move(fd), socket_kind(address), options, deadline);
}

Result<Listener> Listener::open(const Address& address) {
  const bool tcp = address.kind == Address::Kind::tcp;
  if (!tcp) TESSERA_TRY(clear_socket_file(address));
  TESSERA_ASSIGN(const Endpoint endpoint, resolve(address, AI_PASSIVE));
  TESSERA_ASSIGN(Fd fd, make_socket(endpoint));
  const int on = 1;
  if (tcp) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), endpoint.get(), endpoint.length) != 0 || ::listen(fd.get(), 16) != 0)
    return system_error("listening at " + address.text());
  const Address bound = bound_address(fd.get(), address);
  return Listener(std::move(fd), bound);
}

Listener::~Listener() {
  if (socket_ && address_.kind == Address::Kind::unix_path) ::unlink(address_.host.c_str());
}

Result<std::unique_ptr<Channel>> Listener::accept(const AcceptOptions& options, Deadline deadline) {
  const SocketKind kind = socket_kind(address_);
  if (kind == SocketKind::tcp) TESSERA_TRY(check_token(options.token));
  for (;;) {
    Fd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      if (kind == SocketKind::tcp) tune_tcp(fd.get());
      if (kind == SocketKind::unix_socket) TESSERA_TRY(check_user(fd.get()));
      return attach_worker(std::move(fd), kind, options, after(kAttachTime));
    }
    const bool nobody =
        errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
    if (!nobody) return system_error("accepting a client at " + address_.text());
    if (!wait_for(socket_.get(), POLLIN, deadline).ready) return std::unique_ptr<Channel>();
  }
}

}  // namespace tessera::worker
