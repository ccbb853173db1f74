// Attaching: what happens on a fresh connection before the handshake.
//
//   client                                  worker
//   ATTACH{stream|rings, nonce} [memory] ->
//                                        <- CHALLENGE{nonce}     tcp only
//   PROOF{hmac}                          ->
//                                        <- ATTACHED{hmac}       tcp with the worker's proof
//
// After ATTACHED both ends speak through the channel that was chosen. A worker that will not go on
// answers REFUSE or just closes. Whether it serves somebody else it says later, in the handshake,
// and so to nobody who has not proved to know the token.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "worker/fd.h"
#include "worker/messages.h"
#include "worker/refusals.h"
#include "worker/ring_channel.h"
#include "worker/transport.h"

namespace tessera::worker {

enum class SocketKind { unix_socket, tcp };

struct AttachOptions {
  AttachKind kind = AttachKind::rings;  // on tcp always stream
  // Bodies under way in one direction must fit: credits x the longest body.
  std::uint64_t to_worker_bytes = 1 << 20;
  std::uint64_t to_client_bytes = 1 << 20;
  std::string token;  // tcp
  SpinOptions spin;
  bool at_address = false;  // the peer listens where a person said: errors say what would be right
};

// An Error has the worker's REFUSE in words, and `refused` (may be null) gets it.
Result<std::unique_ptr<Channel>> attach_client(Fd socket, SocketKind socket_kind,
                                               const AttachOptions& options, Deadline deadline,
                                               std::optional<Refuse>* refused = nullptr);

// What a worker accepts.
struct AcceptOptions {
  std::string token;                                // tcp
  std::uint64_t max_arena_bytes = kMostArenaBytes;  // each way
  SpinOptions spin;
  Refusals* refusals = nullptr;  // counts who is turned away; may be null
};

Result<std::unique_ptr<Channel>> attach_worker(Fd socket, SocketKind socket_kind,
                                               const AcceptOptions& options, Deadline deadline);

}  // namespace tessera::worker
