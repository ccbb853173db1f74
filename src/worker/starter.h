// Starter: how a supervised worker comes to be there, with a channel to it that is attached.
//
//   Supervisor supervisor(options, spawn_starter({.binary = "/proc/self/exe"}, {}), metrics);
//
// A function, so that a process that is spawned and a worker at an address are supervised alike. It
// runs on the supervisor's thread, is given a deadline, and is cut short by the interrupter.
//
// Errors: unavailable where there is no worker. A REFUSE is none: it is told.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "worker/connect.h"
#include "worker/process.h"

namespace tessera::worker {

struct StartedWorker {
  std::unique_ptr<WorkerProcess> process;  // null for a worker that runs elsewhere
  std::unique_ptr<Channel> channel;        // attached, before the handshake; null where refused
  std::optional<Refuse> refused;
};
// Lets `interrupter` watch the socket, so that stop() need not wait for the deadline.
using Starter = std::function<Result<StartedWorker>(Deadline deadline, Interrupter& interrupter)>;

Starter spawn_starter(const SpawnOptions& spawn, const AttachOptions& attach);
Starter connect_starter(const Address& address, const AttachOptions& attach);

}  // namespace tessera::worker
