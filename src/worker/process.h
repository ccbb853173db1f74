// WorkerProcess: a worker started by this process, from spawn to reap.
//
//   TESSERA_ASSIGN(auto process, WorkerProcess::spawn({.binary = "/usr/bin/tessera",
//                                                      .arguments = {"worker", "--experts"}}));
//   TESSERA_ASSIGN(auto channel, attach_client(process->take_socket(), ...));
//   ...
//   process->stop({}, [&] { session.say_bye(); });
//
// The child gets one end of a socket pair as descriptor kWorkerFd, /dev/null as standard input and
// a pipe as standard output and error, whose lines are logged here with a prefix; every other
// descriptor is closed. Its environment is this process's without TESSERA_ variables, which are
// options of this one. It has its own process group (a Ctrl-C at the terminal is the parent's to
// handle), default signals and no blocked ones.
//
// A worker is its parent's to end, by goodbye or SIGKILL: SIGTERM and SIGINT, which a service
// manager sends to all of a service, it ignores (start_as_worker), so that its parent can let
// answers end. When the parent dies, the child gets SIGKILL (start_as_worker) and sees its socket
// hang up. Linux sends that signal when the *thread* that spawned ends, so spawn on one that lives
// on.
//
// Threads: one at a time; the destructor stops without grace. Nothing here waits longer than the
// times it was given.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker/fd.h"
#include "worker/handshake.h"
#include "worker/messages.h"
#include "worker/stderr_pump.h"
#include "worker/transport.h"

namespace tessera::worker {

inline constexpr int kWorkerFd = 3;

// The connection of a process that ends goes a moment before the process does.
inline constexpr std::chrono::milliseconds kExitFollows{100};

struct SpawnOptions {
  std::string binary;
  std::vector<std::string> arguments;
  std::string log_prefix = "worker";
  bool keep_reason = false;  // why it ends is not logged but for reason()
};

struct StopTimes {
  std::chrono::milliseconds bye{1000};   // to leave by itself
  std::chrono::milliseconds kill{2000};  // for the kernel to end it after SIGKILL
};

class WorkerProcess {
 public:
  static Result<std::unique_ptr<WorkerProcess>> spawn(const SpawnOptions& options);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  Fd take_socket() { return std::move(socket_); }
  // Readable once the child has ended; -1 where the kernel has no pidfd.
  int pidfd() const { return pidfd_.get(); }

  // Reaps the child if it has ended; then true.
  bool ended();
  // The same, waiting for it.
  bool wait(std::chrono::milliseconds limit);
  // "exit status 3", "signal 9 (Killed)"; empty while it runs.
  const std::string& how() const { return how_; }
  // What it said of that, if it did; nothing that it writes is logged from then on.
  std::string reason() { return stderr_->reason(); }

  // say_bye (may be null), wait, SIGKILL, wait, reap. Idempotent. An Error when the
  // child is still there after all of it.
  Status stop(const StopTimes& times, const std::function<void()>& say_bye);

 private:
  WorkerProcess() = default;

  pid_t pid_ = -1;
  bool reaped_ = false;
  std::string how_;
  Fd socket_;
  Fd pidfd_;
  std::unique_ptr<StderrPump> stderr_;
};

// That the file is there, regular and executable.
Status check_binary(const std::string& path);

// Starts `BINARY worker ARGUMENTS --probe` and returns what it says about itself.
Result<SiteProbe> probe_worker(const std::string& binary, const std::vector<std::string>& arguments,
                               Deadline deadline);

// --- In the worker ---

// That a parent started this process by spawn().
Status started_as_worker();

// For a process started by spawn(): ties its life to the parent's and ignores SIGPIPE, SIGTERM and
// SIGINT. Returns the socket to the parent.
Result<Fd> start_as_worker();

// The answer to --probe, and to the PINGs that follow until the parent hangs up.
Status answer_probe(Fd socket, const Probe& probe);

}  // namespace tessera::worker
