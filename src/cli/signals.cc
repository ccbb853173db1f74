#include "cli/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cli/output.h"

namespace tessera::cli {

SignalWatch::SignalWatch(std::function<void(int signal)> handler) : handler_(std::move(handler)) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, &previous_);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  CHECK(signals_ >= 0 && stop_ >= 0, "no descriptors for signals");
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  const std::uint64_t one = 1;
  CHECK(write(stop_, &one, sizeof(one)) == sizeof(one), "eventfd");
  thread_.join();
  close(signals_);
  close(stop_);
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void SignalWatch::watch() {
  for (;;) {
    pollfd waiting[] = {{signals_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(waiting, 2, -1) < 0) continue;
    if ((waiting[1].revents & POLLIN) != 0) return;
    signalfd_siginfo info{};
    if (read(signals_, &info, sizeof(info)) == sizeof(info))
      handler_(static_cast<int>(info.ssi_signo));
  }
}

void end_at_once(int signal) {
  flush_out();
  std::_Exit(128 + signal);
}

void end_within(std::chrono::seconds limit, int signal) {
  std::thread([limit, signal] {
    std::this_thread::sleep_for(limit);
    log_warn("still at work {} s after signal {}: ending in the middle of it", limit.count(),
             signal);
    end_at_once(signal);
  }).detach();
}

}  // namespace tessera::cli
