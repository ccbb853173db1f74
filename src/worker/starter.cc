#include "worker/starter.h"

#include <utility>

namespace tessera::worker {
namespace {

// Of attaching: a worker's REFUSE is an answer, no failure of the start.
Status take_channel(Result<std::unique_ptr<Channel>> channel, StartedWorker& started) {
  if (channel) {
    started.channel = *std::move(channel);
  } else if (!started.refused) {
    return std::move(channel).error();
  }
  return {};
}

}  // namespace

Starter spawn_starter(const SpawnOptions& spawn, const AttachOptions& attach) {
  return [spawn, attach](Deadline deadline, Interrupter& interrupter) -> Result<StartedWorker> {
    if (interrupter.interrupted())
      return Error::make(ErrorCode::cancelled, "{} is not started any more", spawn.binary);
    StartedWorker started;
    TESSERA_ASSIGN(started.process, WorkerProcess::spawn(spawn));
    Fd socket = started.process->take_socket();
    interrupter.watch(socket.get());
    Status attached = take_channel(attach_client(std::move(socket), SocketKind::unix_socket, attach,
                                                 deadline, &started.refused),
                                   started);
    if (attached) return started;
    if (!interrupter.interrupted() && started.process->wait(kExitFollows))
      return Error::make(ErrorCode::unavailable, "{} ended before it was a worker: {}",
                         spawn.binary, started.process->how());
    return std::move(attached).error();
  };
}

Starter connect_starter(const Address& address, const AttachOptions& attach) {
  return [address, attach](Deadline deadline, Interrupter& interrupter) -> Result<StartedWorker> {
    StartedWorker started;
    TESSERA_TRY(take_channel(connect_to(address, attach, deadline, &interrupter, &started.refused),
                             started));
    return started;
  };
}

}  // namespace tessera::worker
