// A worker for tests: scaling experts (worker/scale_handler.h) and faults on request.
//
//   fake_worker worker [old] --probe      (old: it reads models of one architecture alone)
//   fake_worker worker MODE
//
// MODE: serve, listen ADDRESS TOKEN, silent (a byte, and nothing more), rude (ignores the end of
// its connection), exit, corrupt (a frame that was not agreed), other_model, newer
// (versions it has not heard of), updated (another build of the program,
// which names its kernels), no_memory, descriptors
// (exits 0 when it has exactly the four it was given), talk (writes lines, exits 3), crash (aborts
// inside its first job), orphan (spawns a worker, tells its number, and is killed); turns_HOW MODEL
// and loads_without_FILE MODEL, which compute (turning_worker.h). Without a MODE it takes the words
// of `tessera worker`: a model or none.
#include <dirent.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/log.h"
#include "tests/worker/turning_worker.h"
#include "worker/attach.h"
#include "worker/connect.h"
#include "worker/process.h"
#include "worker/scale_handler.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

int fail(const Error& error) {
  log_error("{}", error.message);
  return 1;
}

int count_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  int count = -1;  // the folder's own
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(folder);
  return count;
}

int serve_on(Channel& channel, const std::string& mode) {
  ScaleHandler handler;
  if (mode == "crash") handler.set_before_job([](const FrameHeader&) { ::_exit(77); });
  WorkerOffer offer = scale_offer();
  if (mode == "other_model") offer.model[1] = std::byte{1};
  if (mode == "updated") offer.probe.build = {.isa = 1, .version = "newer"};
  if (mode == "newer") offer.version_min = offer.version_max = kVersionMax + 1;
  Stats stats;
  const Result<ServeEnd> end = serve(channel, offer, handler, stats);
  return end ? 0 : fail(end.error());
}

// A handshake, and then what no worker would send.
int corrupt(Channel& channel) {
  const Prepare ready = [](const Hello&, const HelloAck&) -> Result<Prepared> {
    return Prepared{};
  };
  if (!worker_handshake(channel, scale_offer(), ready, after(10s)).ok()) return 1;
  const FrameHeader absurd{
      .op = Op::result, .rows = 60'000, .items = 64, .out_type = WireType::f32};
  (void)channel.send(absurd, after(1s));
  std::this_thread::sleep_for(60s);
  return 0;
}

int no_memory(Channel& channel) {
  const Prepare full = [](const Hello&, const HelloAck&) -> Result<Prepared> {
    return Error::make(ErrorCode::exhausted, "full");
  };
  return worker_handshake(channel, scale_offer(), full, after(10s)).ok() ? 1 : 0;
}

int orphan(char* self, const Fd& parent) {
  const auto child = WorkerProcess::spawn({.binary = self, .arguments = {"worker", "rude"}});
  if (!child) return fail(child.error());
  // Not before the grandchild has tied its life to this one: it says so by attaching.
  const auto channel =
      attach_client((*child)->take_socket(), SocketKind::unix_socket, {}, after(10s));
  const pid_t pid = (*child)->pid();
  (void)!::write(parent.get(), &pid, sizeof(pid));
  ::raise(SIGKILL);
  return channel ? 0 : 1;
}

int listen_at(const char* text, const char* token) {
  Result<Listener> listener = Listener::open(*Address::parse(text));
  if (!listener) return fail(listener.error());
  for (;;) {
    const auto channel = listener->accept({.token = token}, after(60s));
    if (!channel) continue;
    if (*channel == nullptr) return 0;
    (void)serve_on(**channel, "serve");
  }
}

int worker_main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[2] : "";
  if (mode == "listen") return listen_at(argv[3], argv[4]);
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  if (mode.starts_with("turns_") || mode.starts_with(kLoadsWithout))
    return turning_worker(mode, words.subspan(3));
  if (mode.starts_with("/") || (mode.starts_with("--") && mode != "--probe"))
    return turning_worker("turns_never", words.subspan(2));
  Result<Fd> socket = start_as_worker();
  if (!socket) return fail(socket.error());
  if (mode == "--probe" || mode == "old") {
    Probe probe{.roles = role_bit(Role::experts)};
    if (mode == "old") probe.architectures = {"ancient"};
    return answer_probe(std::move(*socket), probe).ok() ? 0 : 1;
  }
  if (mode == "descriptors") return count_descriptors() == 4 ? 0 : count_descriptors();
  if (mode == "exit") return 5;
  if (mode == "orphan") return orphan(argv[0], *socket);
  if (mode == "talk") {
    (void)!::write(2, "one line\nand a rest", 19);
    return 3;
  }
  if (mode == "silent") {
    (void)!::write(socket->get(), "", 1);
    std::this_thread::sleep_for(60s);
    return 0;
  }
  auto channel = attach_worker(std::move(*socket), SocketKind::unix_socket, {}, after(10s));
  if (!channel) return fail(channel.error());
  if (mode == "rude") {
    std::this_thread::sleep_for(60s);
    return 0;
  }
  if (mode == "corrupt") return corrupt(**channel);
  if (mode == "no_memory") return no_memory(**channel);
  return serve_on(**channel, mode);
}

}  // namespace
}  // namespace tessera::worker

int main(int argc, char** argv) {
  tessera::set_log_level(tessera::LogLevel::off);
  return tessera::worker::worker_main(argc, argv);
}
