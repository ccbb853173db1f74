// What a worker of experts that dies or hangs costs the request it was computing for, as a table.
//
//   worker_faults_bench TESSERA MODEL [RESIDENT% [TRIES]]
//
// With the settings of the program: a step of a prompt's 512 rows or of one row is begun, a third
// of its usual time later the worker is killed or stopped, and the step is timed, with the three
// after it, since a worker that is not yet known to be lost may be asked again. `host` is the time
// of a step whose experts the host computes, `healthy` of one with the worker, both medians;
// `added` is by how much the slowest of the four steps exceeds `healthy`: the median and the
// largest of the tries. A fault between two jobs of a step, or one that the host computed anyway,
// adds less.
#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "bench/away_experts.h"
#include "tests/worker/process_counts.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;
using bench::AwayExperts;
using worker::TransportChoice;

constexpr int kRows = 512;
constexpr int kUsual = 9;  // steps whose median is usual
constexpr int kAfter = 3;  // steps watched after the fault
constexpr auto kPatience = std::chrono::seconds(20);

struct Arguments {
  std::string program;
  std::string model;
  double resident = 50.0;
  int tries = 9;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Result<double> step(AwayExperts& away, int rows) {
  TESSERA_TRY(away.restart());
  const auto begin = Clock::now();
  TESSERA_TRY(away.feed(rows, true));
  return Milliseconds(Clock::now() - begin).count();
}

Result<double> usual(AwayExperts& away, int rows) {
  std::vector<double> times;
  for (int i = 0; i < kUsual; ++i) {
    TESSERA_ASSIGN(const double time, step(away, rows));
    times.push_back(time);
  }
  return median(times);
}

// Until the worker computes again.
Status recover(AwayExperts& away) {
  const auto begin = Clock::now();
  for (std::uint64_t calls = away.metrics.worker.calls.value();;) {
    TESSERA_TRY(step(away, 1));
    if (away.healthy() && away.metrics.worker.calls.value() > calls) return {};
    if (Clock::now() - begin > kPatience)
      return Error::make(ErrorCode::unavailable, "the worker did not come back");
    calls = away.metrics.worker.calls.value();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Status measure(const Arguments& arguments, TransportChoice transport, int rows, double host) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    TESSERA_ASSIGN(const auto away, AwayExperts::open({.program = arguments.program,
                                                       .model = arguments.model,
                                                       .resident = arguments.resident,
                                                       .context = 2 * kRows,
                                                       .chunk = kRows,
                                                       .transport = transport}));
    TESSERA_ASSIGN(const double healthy, usual(*away, rows));
    std::vector<double> added;
    for (int i = 0; i < arguments.tries; ++i) {
      const int pid = testing::first_child();
      std::thread fault([=] {
        std::this_thread::sleep_for(Milliseconds(healthy / 3));
        ::kill(pid, signal);
      });
      double slowest = 0;
      for (int n = 0; n <= kAfter; ++n) {
        const Result<double> time = step(*away, rows);
        if (n == 0) fault.join();
        TESSERA_TRY(time);
        slowest = std::max(slowest, *time);
      }
      added.push_back(slowest - healthy);
      if (signal == SIGSTOP) ::kill(pid, SIGCONT);
      TESSERA_TRY(recover(*away));
    }
    fmt::print("{:<8}{:<9}{:<7}{:>9.2f}{:>9.2f}{:>9.2f}{:>9.2f}\n",
               transport == TransportChoice::shared ? "shared" : "stream",
               rows == 1 ? "decode" : "prefill", signal == SIGKILL ? "kill" : "stop", host, healthy,
               median(added), *std::max_element(added.begin(), added.end()));
    std::fflush(stdout);
  }
  return {};
}

Status bench_main(const Arguments& arguments) {
  set_log_level(LogLevel::error);
  fmt::print("{} % of the experts resident, {} tries; milliseconds\n\n", arguments.resident,
             arguments.tries);
  fmt::print("{:<8}{:<9}{:<7}{:>9}{:>9}{:>9}{:>9}\n", "link", "phase", "fault", "host", "healthy",
             "added", "at most");
  for (const int rows : {kRows, 1}) {
    TESSERA_ASSIGN(const auto alone, AwayExperts::open({.program = arguments.program,
                                                        .model = arguments.model,
                                                        .resident = arguments.resident,
                                                        .context = 2 * kRows,
                                                        .chunk = kRows,
                                                        .workers = 0}));
    TESSERA_ASSIGN(const double host, usual(*alone, rows));
    for (const TransportChoice transport : {TransportChoice::shared, TransportChoice::stream})
      TESSERA_TRY(measure(arguments, transport, rows, host));
  }
  return {};
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: worker_faults_bench TESSERA MODEL [RESIDENT% [TRIES]]\n");
    return 2;
  }
  tessera::Arguments arguments{.program = argv[1], .model = argv[2]};
  if (argc > 3) arguments.resident = std::atof(argv[3]);
  if (argc > 4) arguments.tries = std::atoi(argv[4]);
  if (const tessera::Status status = tessera::bench_main(arguments); !status) {
    fmt::print(stderr, "worker_faults_bench: {}\n", status.error().message);
    return 1;
  }
}
