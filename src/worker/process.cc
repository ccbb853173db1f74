#include "worker/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "worker/socket_io.h"
#include "worker/stream_channel.h"

namespace tessera::worker {
namespace {

// posix_spawn's actions run one after another in the child; descriptors above those that they
// write to cannot be overwritten before their turn.
constexpr int kOutOfTheWay = 16;

Result<Fd> move_up(Fd fd) {
  Fd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kOutOfTheWay));
  if (!moved) return system_error("starting a worker: descriptors");
  return moved;
}

struct Pair {
  Fd mine, childs;
};

Result<Pair> make_sockets() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return system_error("starting a worker: socket pair");
  Fd mine(fds[0]), childs(fds[1]);
  TESSERA_ASSIGN(Fd moved, move_up(std::move(childs)));
  return Pair{std::move(mine), std::move(moved)};
}

Result<Pair> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return system_error("starting a worker: pipe");
  Fd mine(fds[0]), childs(fds[1]);
  TESSERA_ASSIGN(Fd moved, move_up(std::move(childs)));
  return Pair{std::move(mine), std::move(moved)};
}

// Descriptors of the child's ends.
struct ChildEnds {
  int socket = -1;
  int output = -1;
};

// What the child does between fork and exec. posix_spawn shares the parent's memory until then, so
// the size of this process does not matter.
class SpawnPlan {
 public:
  explicit SpawnPlan(const ChildEnds& ends) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, ends.output, 1);
    ::posix_spawn_file_actions_adddup2(&actions_, ends.output, 2);
    ::posix_spawn_file_actions_adddup2(&actions_, ends.socket, kWorkerFd);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, kWorkerFd + 1);
    ::posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  int start(pid_t& pid, const SpawnOptions& options) const {
    std::vector<char*> argv = {const_cast<char*>(options.binary.c_str())};
    for (const std::string& argument : options.arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    std::vector<char*> environment;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
      if (!std::string_view(*entry).starts_with("TESSERA_")) environment.push_back(*entry);
    environment.push_back(nullptr);
    return ::posix_spawn(&pid, options.binary.c_str(), &actions_, &attributes_, argv.data(),
                         environment.data());
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::string describe_end(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return fmt::format("exit status {}", info.si_status);
  return fmt::format("signal {} ({})", info.si_status, ::strsignal(info.si_status));
}

}  // namespace

Status check_binary(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    return Error::make(ErrorCode::not_found, "worker binary {}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode) || ::access(path.c_str(), X_OK) != 0)
    return Error::make(ErrorCode::invalid, "worker binary {} is not an executable file", path);
  return {};
}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::spawn(const SpawnOptions& options) {
  TESSERA_TRY(check_binary(options.binary));
  TESSERA_ASSIGN(Pair sockets, make_sockets());
  TESSERA_ASSIGN(Pair output, make_pipe());
  std::unique_ptr<WorkerProcess> process(new WorkerProcess());
  const SpawnPlan plan({.socket = sockets.childs.get(), .output = output.childs.get()});
  const int code = plan.start(process->pid_, options);
  if (code != 0) return system_error(fmt::format("starting {}", options.binary), code);
  process->pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, process->pid_, 0)));
  process->socket_ = std::move(sockets.mine);
  TESSERA_ASSIGN(process->stderr_, StderrPump::start(std::move(output.mine), options.log_prefix,
                                                     options.keep_reason));
  return process;
}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  if (const Status status = stop({.bye = std::chrono::milliseconds(0)}, nullptr); !status)
    log_error("{}", status.error().message);
}

bool WorkerProcess::ended() {
  if (reaped_) return true;
  siginfo_t info{};
  int code;
  do {
    code = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
  } while (code != 0 && errno == EINTR);
  if (code == 0 && info.si_pid == 0) return false;
  // An error here means that somebody else reaped it: it has ended all the same.
  how_ = code == 0 ? describe_end(info) : "reaped elsewhere";
  reaped_ = true;
  return true;
}

bool WorkerProcess::wait(std::chrono::milliseconds limit) {
  const Deadline deadline = after(limit);
  while (!ended()) {
    const Deadline now = Clock::now();
    if (now >= deadline) return false;
    if (pidfd_) {
      (void)wait_for(pidfd_.get(), POLLIN, deadline);
    } else {
      std::this_thread::sleep_for(
          std::min<Clock::duration>(deadline - now, std::chrono::milliseconds(5)));
    }
  }
  return true;
}

Status WorkerProcess::stop(const StopTimes& times, const std::function<void()>& say_bye) {
  if (ended()) return {};
  if (say_bye) say_bye();
  socket_.reset();
  if (wait(times.bye)) return {};
  // Until it is reaped the number belongs to this child and to nobody else.
  ::kill(pid_, SIGKILL);
  if (wait(times.kill)) return {};
  return Error::make(ErrorCode::internal, "worker process {} does not end {} ms after SIGKILL",
                     pid_, times.kill.count());
}

namespace {
constexpr std::chrono::milliseconds kLastWordsTime{500};
}

Result<SiteProbe> probe_worker(const std::string& binary, const std::vector<std::string>& arguments,
                               Deadline deadline) {
  SpawnOptions options{
      .binary = binary, .arguments = {"worker"}, .log_prefix = "worker probe", .keep_reason = true};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  options.arguments.push_back("--probe");
  TESSERA_ASSIGN(const std::unique_ptr<WorkerProcess> process, WorkerProcess::spawn(options));
  TESSERA_ASSIGN(const std::unique_ptr<StreamChannel> channel,
                 StreamChannel::adopt(process->take_socket(), "worker probe"));
  Frame frame;
  Result<bool> came = channel->receive(frame, deadline);
  if (!came || !*came || frame.header.op != Op::probe) {
    // One that ends on its own closes its socket first and says why afterwards.
    if (!came && came.error().code == ErrorCode::unavailable) (void)process->wait(kLastWordsTime);
    const ErrorCode code = came ? ErrorCode::unsupported : came.error().code;
    if (const std::string reason = process->reason(); !reason.empty())
      return Error::make(code, "{}", reason);
    return Error::make(
        code, "{} does not answer 'worker --probe'{}; bin= is the path of a tessera program",
        binary, came ? "" : fmt::format(" ({})", came.error().message));
  }
  TESSERA_ASSIGN(const Probe probe, decode_probe(frame.body()));
  if (!probe.speaks_our_version())
    return Error::make(ErrorCode::unsupported,
                       "{} speaks versions {} to {} of the worker protocol, this program {} to {}",
                       binary, probe.version_min, probe.version_max, kVersionMin, kVersionMax);
  const Result<std::chrono::nanoseconds> round_trip = client_round_trip(*channel, deadline);
  return SiteProbe{probe, round_trip ? *round_trip : std::chrono::nanoseconds(0)};
}

Status started_as_worker() {
  int type = 0;
  socklen_t length = sizeof(type);
  if (::getsockopt(kWorkerFd, SOL_SOCKET, SO_TYPE, &type, &length) == 0) return {};
  return Error::make(
      ErrorCode::invalid,
      "--listen ADDRESS is missing: without it, and with --probe, a worker is started by a server, "
      "on a socket as descriptor {}",
      kWorkerFd);
}

Result<Fd> start_as_worker() {
  for (const int signal : {SIGPIPE, SIGTERM, SIGINT}) ::signal(signal, SIG_IGN);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return system_error("asking for the parent's end");
  TESSERA_TRY(started_as_worker());
  // Nobody but the parent holds the other end, so one that hung up before the signal was asked for
  // is a parent that died before.
  if (wait_for(kWorkerFd, 0, Deadline::min()).hung_up)
    return Error::make(ErrorCode::unavailable, "the process that started this worker is gone");
  Fd socket(kWorkerFd);
  if (::fcntl(kWorkerFd, F_SETFD, FD_CLOEXEC) != 0) return system_error("descriptor flags");
  return socket;
}

Status answer_probe(Fd socket, const Probe& probe) {
  TESSERA_ASSIGN(const std::unique_ptr<StreamChannel> channel,
                 StreamChannel::adopt(std::move(socket), "worker probe"));
  const Deadline until = after(std::chrono::seconds(2));
  TESSERA_TRY(channel->send({.op = Op::probe}, encode(probe), until));
  for (Frame frame;;) {
    const Result<bool> came = channel->receive(frame, until);
    if (!came || !*came || frame.header.op != Op::ping || Clock::now() >= until) return {};
    TESSERA_TRY(channel->send({.op = Op::pong}, until));
  }
}

}  // namespace tessera::worker
