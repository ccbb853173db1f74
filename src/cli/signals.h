// SignalWatch: SIGINT and SIGTERM as calls of a function, on a thread where anything may be done.
//
//   SignalWatch watch([&](int signal) { stop.release(); });
//
// Made before any other thread, so that all inherit the blocked signals; while it lives they do not
// end the program.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

namespace tessera::cli {

class SignalWatch {
 public:
  explicit SignalWatch(std::function<void(int signal)> handler);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  void watch();

  std::function<void(int)> handler_;
  sigset_t previous_{};
  int signals_ = -1;  // signalfd
  int stop_ = -1;     // eventfd
  std::thread thread_;
};

// Ends the process now, as if by the signal, without cleaning up.
[[noreturn]] void end_at_once(int signal);
// Does so with a line in the log if it has not ended by then.
void end_within(std::chrono::seconds limit, int signal);

}  // namespace tessera::cli
