// resolve: what an address stands for, by sockets' own names.
//
//   TESSERA_ASSIGN(const std::vector<Endpoint> endpoints, resolve(address, after(5s), nullptr));
//   ... connect to each in turn, in the system's order
//
// Numbers and paths are understood at once. A host's name is looked up by the system on a thread of
// its own, since that knows no deadline and cannot be ended: at the deadline, or when the
// interrupter is used, the answer is no longer waited for, and the thread goes when the system has
// one. At least one endpoint is returned. Errors: unavailable (nobody knows the name, which may be
// so for a while, or no answer in time), cancelled (interrupted). Threads: any.
#pragma once

#include <sys/socket.h>

#include <vector>

#include "base/result.h"
#include "worker/address.h"
#include "worker/interrupter.h"
#include "worker/transport.h"

namespace tessera::worker {

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

enum class EndpointUse { connect, listen };

// `interrupter` may be null; it watches something else afterwards.
Result<std::vector<Endpoint>> resolve(const Address& address, EndpointUse use, Deadline deadline,
                                      Interrupter* interrupter);

// Whether both are one place, however they are spelled: paths of one file, hosts with an address in
// common and the same port. Names that are not known by the deadline are their own.
bool same_place(const Address& a, const Address& b, Deadline deadline);

}  // namespace tessera::worker
