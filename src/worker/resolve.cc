#include "worker/resolve.h"

#include <netdb.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
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
    return Error::make(ErrorCode::unavailable, "{}: the host's name is not known: {}",
                       address.text(), ::gai_strerror(code));
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

namespace {

// Without dots and links, as far as the path is there.
std::string canonical(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found = std::filesystem::weakly_canonical(path, error);
  return error ? std::filesystem::path(path).lexically_normal().string() : found.string();
}

bool same_endpoint(const Endpoint& a, const Endpoint& b) {
  return a.length == b.length && std::memcmp(&a.storage, &b.storage, a.length) == 0;
}

}  // namespace

bool same_place(const Address& a, const Address& b, Deadline deadline) {
  if (a == b) return true;
  if (a.kind != b.kind) return false;
  if (a.kind == Address::Kind::unix_path) return canonical(a.host) == canonical(b.host);
  const Endpoints of_a = resolve(a, EndpointUse::connect, deadline, nullptr);
  if (!of_a) return false;
  const Endpoints of_b = resolve(b, EndpointUse::connect, deadline, nullptr);
  return of_b && std::find_first_of(of_a->begin(), of_a->end(), of_b->begin(), of_b->end(),
                                    same_endpoint) != of_a->end();
}

}  // namespace tessera::worker
