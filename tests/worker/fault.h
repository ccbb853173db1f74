// The fault matrix of workers: what happens to one, in which phase, over which link.
//
//   INSTANTIATE_TEST_SUITE_P(Cells, LayerFaults, all_faults(), fault_name);
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "base/environment.h"
#include "tests/send_signal.h"
#include "worker/site.h"

namespace tessera::testing {

// Limits of time are this much longer under a sanitizer.
inline constexpr int kTimeScale = TESSERA_TIME_SCALE;

// What nobody waits for, and what nothing takes that ends by itself, however busy the machine is.
inline constexpr std::chrono::minutes kNever{30};
inline constexpr std::chrono::minutes kBearable{2 * kTimeScale};

// Between a client and its worker. A worker behind the first two is spawned, one behind the third
// listens.
enum class Link { shared, stream, tcp };
inline const char* link_name(Link link) {
  constexpr const char* kNames[] = {"shared", "stream", "tcp"};
  return kNames[static_cast<std::size_t>(link)];
}
inline constexpr Link kLinks[] = {Link::shared, Link::stream, Link::tcp};
inline worker::TransportChoice transport_of(Link link) {
  return link == Link::shared ? worker::TransportChoice::shared : worker::TransportChoice::stream;
}

// kill: in the middle of a job. stop: for good. slow: stopped for a while. The others answer from
// some moment on with a frame that was not agreed, too few rows, a result that nobody asked for, an
// ERROR, silence, the end of the process, bytes of a result or of a job that the way has spoilt, or
// results that are not finite (turning_worker.h).
enum class Fault {
  kill,
  stop,
  slow,
  absurd,
  few,
  unasked,
  refusal,
  silence,
  exit,
  garbled,
  garbled_job,
  nan
};
inline const char* fault_word(Fault fault) {
  constexpr const char* kNames[] = {"kill", "stop",    "slow",       "absurd",
                                    "few",  "unasked", "refusal",    "silence",
                                    "exit", "garbled", "garbledjob", "nan"};
  return kNames[static_cast<std::size_t>(fault)];
}
inline bool is_corrupt(Fault fault) {
  return fault > Fault::slow;
}

inline bool waits_for_a_deadline(Fault fault) {
  return fault == Fault::stop || fault == Fault::silence;
}

struct FaultCase {
  Fault fault;
  bool prefill;
  Link link;
};

inline auto all_faults() {
  std::vector<FaultCase> cases;
  for (int fault = 0; fault <= static_cast<int>(Fault::nan); ++fault)
    for (const bool prefill : {true, false})
      for (const Link link : kLinks) cases.push_back({static_cast<Fault>(fault), prefill, link});
  return ::testing::ValuesIn(cases);
}
// Those that say nothing any more while their connection lives.
inline auto hung_workers() {
  std::vector<FaultCase> cases;
  for (const Fault fault : {Fault::stop, Fault::silence})
    for (const bool prefill : {true, false})
      for (const Link link : kLinks) cases.push_back({fault, prefill, link});
  return ::testing::ValuesIn(cases);
}
inline std::string fault_name(const ::testing::TestParamInfo<FaultCase>& info) {
  return fmt::format("{}_{}_{}", fault_word(info.param.fault),
                     info.param.prefill ? "prefill" : "decode", link_name(info.param.link));
}
inline std::string link_param_name(const ::testing::TestParamInfo<Link>& info) {
  return link_name(info.param);
}

// That a test of many is to do.
inline int wanted_kills() {
  const auto wanted = environment_variable("TESSERA_TEST_KILLS");
  return wanted ? std::stoi(*wanted) : 30;
}

inline bool eventually(const std::function<bool()>& done) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + kBearable;
  for (; !done(); std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    if (Clock::now() > end) return false;
  return true;
}

// The workers of fake_worker that are told of it load only while it is open.
class LoadGate {
 public:
  ~LoadGate() { open(); }
  std::string mode() const { return "loads_without_" + path_; }
  void close() const { std::ofstream{path_}; }
  void open() const { std::filesystem::remove(path_); }

 private:
  const std::string path_ = fmt::format("{}tessera_gate_{}", ::testing::TempDir(), ::getpid());
};

// Makes it happen to process `pid`, whose binary is fake_worker for what is corrupt. Ends when it
// has happened, in the destructor at the latest; one that is slow is so until `showed`.
class Injection {
 public:
  Injection(
      Fault fault, int pid, const std::function<bool()>& showed = [] { return true; }) {
    using std::chrono::milliseconds;
    if (is_corrupt(fault)) {
      send_signal(pid, SIGUSR1);
      return;
    }
    send_signal(pid, SIGSTOP);  // so that what comes later comes in the middle of a job
    if (fault == Fault::stop) return;
    later_ = std::thread([fault, pid, showed] {
      std::this_thread::sleep_for(milliseconds(fault == Fault::kill ? 20 : 100 * kTimeScale));
      if (fault == Fault::slow) {
        EXPECT_TRUE(eventually(showed));
      }
      send_signal(pid, fault == Fault::kill ? SIGKILL : SIGCONT);
    });
  }
  ~Injection() {
    if (later_.joinable()) later_.join();
  }

 private:
  std::thread later_;
};

}  // namespace tessera::testing
