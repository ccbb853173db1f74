// Connecting and listening by address.
//
//   TESSERA_ASSIGN(auto channel, connect_to(address, {.token = token}, after(5s)));
//   TESSERA_ASSIGN(Listener listener, Listener::open(address));
//   TESSERA_ASSIGN(auto accepted, listener.accept({.token = token}, after(1s)));   // may be null
//
// A name may stand for several addresses: each is tried, in the system's order (resolve.h).
//
// At a unix address either end refuses a peer of another user but root.
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "worker/address.h"
#include "worker/attach.h"
#include "worker/interrupter.h"
#include "worker/socket_file.h"

namespace tessera::worker {

// `refused`: as of attach_client().
Result<std::unique_ptr<Channel>> connect_to(const Address& address, const AttachOptions& options,
                                            Deadline deadline, Interrupter* interrupter = nullptr,
                                            std::optional<Refuse>* refused = nullptr);

class Listener {
 public:
  // A socket file that nobody listens on any more is replaced.
  static Result<Listener> open(const Address& address);

  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) noexcept = default;

  // Null when nobody came before the deadline, or stop() was called. A client that fails to attach
  // is an error of that client: the listener goes on. A client has `kAttachTime` for it, whatever
  // the deadline.
  Result<std::unique_ptr<Channel>> accept(const AcceptOptions& options, Deadline deadline);
  // The first half of it: a connection that nothing was read from. No descriptor when nobody came;
  // exhausted where the system has no more to give.
  Result<Fd> take(Deadline deadline);
  // Makes accept() return null, now and from then on. Any thread.
  void stop();
  bool stopped() const;
  SocketKind kind() const;
  // As bound: with the port that the system chose for port 0.
  const Address& address() const { return address_; }

 private:
  Listener(Fd socket, Address address) : socket_(std::move(socket)), address_(std::move(address)) {}

  Fd socket_;
  Address address_;
  SocketFile file_;  // removed before the socket ends
};

inline constexpr auto kAttachTime = std::chrono::seconds(5);

}  // namespace tessera::worker
