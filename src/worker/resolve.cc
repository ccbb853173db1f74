#include "worker/resolve.h"

#include <netdb.h>
#include <poll.h>
#include <sys/un.h>

#include <cstring>
#include <future>
#include <system_error>
#include <thread>

#include "worker/socket_io.h"

namespace tessera::worker {
namespace {

using Endpoints = Result<std::vector<Endpoint>>;

Endpoint unix_endpoint(const std::string& path) {
  Endpoint endpoint;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  std::memcpy(&endpoint.storage, &name, sizeof(name));
  endpoint.length = sizeof(name);
  return endpoint;
}

Endpoints ask_system(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found);
  if (code != 0)
    return Error::make(ErrorCode::not_found, "{}: {}", address.text(), ::gai_strerror(code));
  std::vector<Endpoint> endpoints;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Endpoint& endpoint = endpoints.emplace_back();
    endpoint.length = one->ai_addrlen;
    std::memcpy(&endpoint.storage, one->ai_addr, one->ai_addrlen);
  }
  ::freeaddrinfo(found);
  return endpoints;
}

// The other end of `done` hangs up when the answer is there, and this one by the interrupter.
Endpoints ask_in_thread(const Address& address, int flags, Deadline deadline,
                        Interrupter* interrupter) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return system_error("looking up " + address.text());
  const Fd done(fds[0]);
  if (interrupter != nullptr) interrupter->watch(done.get());
  std::promise<Endpoints> promise;
  std::future<Endpoints> answer = promise.get_future();
  try {
    std::thread([address, flags, promise = std::move(promise), finished = Fd(fds[1])]() mutable {
      promise.set_value(ask_system(address, flags));
    }).detach();
  } catch (const std::system_error& error) {
    return Error::make(ErrorCode::exhausted, "looking up {}: {}", address.text(), error.what());
  }
  (void)wait_for(done.get(), POLLIN, deadline);
  if (answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready) return answer.get();
  if (interrupter != nullptr && interrupter->interrupted())
    return Error::make(ErrorCode::cancelled, "looking up {} was ended", address.text());
  return Error::make(ErrorCode::unavailable, "{}: no answer to the question for its address",
                     address.text());
}

}  // namespace

Endpoints resolve(const Address& address, EndpointUse use, Deadline deadline,
                  Interrupter* interrupter) {
  if (address.kind == Address::Kind::unix_path)
    return std::vector<Endpoint>{unix_endpoint(address.host)};
  const int flags = use == EndpointUse::listen ? AI_PASSIVE : 0;
  if (Endpoints numeric = ask_system(address, flags | AI_NUMERICHOST); numeric) return numeric;
  return ask_in_thread(address, flags, deadline, interrupter);
}

}  // namespace tessera::worker
