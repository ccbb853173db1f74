// Round trips between two processes over each transport: p50, p99 and the longest, in microseconds.
//
//   transport_bench [ROUNDS]      default 20000 a line; lines with pauses take a hundredth of that
//
// "sleep" pauses before each round, longer than either end spins, so that both must be woken; the
// pause is not counted. A body of 8192 bytes is one f32 row of 2048 columns each way.
//
// "floor" is what this machine takes to put two processes to sleep and wake them, with nothing else
// around it: a word that each hands to the other by futex, or a count by eventfd.
#include <fmt/core.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <vector>

#include "worker/channel_pair.h"
#include "worker/connect.h"

namespace tessera::worker {
namespace {

using namespace std::chrono_literals;

struct Case {
  const char* name;
  AttachKind kind;
  bool tcp;
  std::chrono::nanoseconds spin;
  std::uint32_t rows;  // of 2048 columns; 0: no body
  bool pause;
};

// The spinning lines want a core for each end: the client on the first core, the worker on the
// second.
void pin(const Case& c, int cpu) {
  if (c.spin != 200us) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

constexpr std::uint32_t kColumns = 2048;
const std::string kToken = "a token for the benchmark";

WireLimits limits() {
  return {.n_layer = 1,
          .n_embd = kColumns,
          .n_expert = 1,
          .max_rows = 64,
          .max_pairs = 1,
          .in_types = kFloatTypes,
          .out_types = kFloatTypes};
}

FrameHeader header_of(const Case& c) {
  if (c.rows == 0) return {.op = Op::ping};
  return {.op = Op::result, .rows = c.rows, .items = kColumns, .out_type = WireType::f32};
}

// Sends every frame back until the connection ends.
[[noreturn]] void echo(Channel& channel) {
  channel.set_limits(limits());
  Frame frame;
  for (;;) {
    const Result<bool> came = channel.receive(frame, after(1s));
    if (!came) ::_exit(0);
    if (*came && !channel.send(frame.header, frame.body(), after(1s))) ::_exit(0);
  }
}

std::unique_ptr<Channel> start(const Case& c) {
  const AttachOptions options{.kind = c.kind, .token = kToken, .spin = {c.spin}};
  const AcceptOptions accept{.token = kToken, .spin = {c.spin}};
  const SocketKind kind = c.tcp ? SocketKind::tcp : SocketKind::unix_socket;
  if (c.tcp) {
    Listener listener = *Listener::open(*Address::parse("tcp:127.0.0.1:0"));
    if (::fork() == 0) echo(**listener.accept(accept, after(5s)));
    return *connect_to(listener.address(), options, after(5s));
  }
  auto [a, b] = socket_pair();
  if (::fork() == 0) {
    a.reset();
    pin(c, 1);
    echo(**attach_worker(std::move(b), kind, accept, after(5s)));
  }
  b.reset();
  return *attach_client(std::move(a), kind, options, after(5s));
}

// `round` is a round trip.
template <typename Round>
void time_rounds(const char* name, bool pause, int rounds, Round round) {
  std::vector<double> us;
  const int warm = pause ? 10 : 1000;
  for (int i = -warm; i < rounds; ++i) {
    if (pause) ::usleep(2000);
    const Deadline begin = Clock::now();
    round();
    if (i >= 0)
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::sort(us.begin(), us.end());
  fmt::print("{:<34} {:>8.2f} {:>8.2f} {:>9.1f}\n", name, us[us.size() / 2],
             us[us.size() * 99 / 100], us.back());
}

void measure(const Case& c, int rounds) {
  cpu_set_t all;
  ::sched_getaffinity(0, sizeof(all), &all);
  std::unique_ptr<Channel> channel = start(c);
  pin(c, 0);
  channel->set_limits(limits());
  const std::vector<std::byte> body(std::size_t{c.rows} * kColumns * 4, std::byte{1});
  Frame frame;
  time_rounds(c.name, c.pause, rounds, [&] {
    CHECK(channel->send(header_of(c), body, after(1s)).ok());
    const Result<bool> came = channel->receive(frame, after(1s));
    CHECK(came.ok() && *came);
  });
  channel->close();
  ::sched_setaffinity(0, sizeof(all), &all);
  ::wait(nullptr);
}

// Two ends that hand each other a turn; the second one runs in a process of its own.
void measure_floor(const char* name, int rounds, auto pass, auto await) {
  const pid_t other = ::fork();
  if (other == 0) {
    for (;;) {
      await(1);
      pass(0);
    }
  }
  time_rounds(name, true, rounds, [&] {
    pass(1);
    await(0);
  });
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

void measure_futex(int rounds) {
  void* const page =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  auto* const turn = new (page) std::atomic<int>(0);
  measure_floor(
      "floor: futex, sleep", rounds,
      [&](int whose) {
        turn->store(whose);
        ::syscall(SYS_futex, turn, FUTEX_WAKE, 1, nullptr, nullptr, 0);
      },
      [&](int whose) {
        while (turn->load() != whose)
          ::syscall(SYS_futex, turn, FUTEX_WAIT, 1 - whose, nullptr, nullptr, 0);
      });
  ::munmap(page, 4096);
}

void measure_eventfd(int rounds) {
  const int turns[] = {::eventfd(0, EFD_CLOEXEC), ::eventfd(0, EFD_CLOEXEC)};
  CHECK(turns[0] >= 0 && turns[1] >= 0);
  std::uint64_t count = 1;
  measure_floor(
      "floor: eventfd, sleep", rounds,
      [&](int whose) { CHECK(::write(turns[whose], &(count = 1), sizeof(count)) > 0); },
      [&](int whose) { CHECK(::read(turns[whose], &count, sizeof(count)) > 0); });
  for (const int turn : turns) ::close(turn);
}

}  // namespace
}  // namespace tessera::worker

int main(int argc, char** argv) {
  using namespace tessera::worker;
  const int rounds = argc > 1 ? std::max(100, std::atoi(argv[1])) : 20'000;
  const Case cases[] = {
      {"rings, spin, no body", AttachKind::rings, false, 200us, 0, false},
      {"rings, spin, 8 KiB", AttachKind::rings, false, 200us, 1, false},
      {"rings, spin, 128 KiB", AttachKind::rings, false, 200us, 16, false},
      {"rings, default, 8 KiB", AttachKind::rings, false, SpinOptions{}.max_spin, 1, false},
      {"rings, sleep, no body", AttachKind::rings, false, 0us, 0, true},
      {"rings, sleep, 8 KiB", AttachKind::rings, false, 0us, 1, true},
      {"rings, default, 8 KiB, paused", AttachKind::rings, false, SpinOptions{}.max_spin, 1, true},
      {"rings, never spin, 8 KiB", AttachKind::rings, false, 0us, 1, false},
      {"unix stream, no body", AttachKind::stream, false, 0us, 0, false},
      {"unix stream, 8 KiB", AttachKind::stream, false, 0us, 1, false},
      {"unix stream, 128 KiB", AttachKind::stream, false, 0us, 16, false},
      {"tcp stream (loopback), 8 KiB", AttachKind::stream, true, 0us, 1, false},
  };
  fmt::print("{:<34} {:>8} {:>8} {:>9}\n", "round trip, us", "p50", "p99", "max");
  const int paused = std::max(100, rounds / 100);
  for (const Case& c : cases) {
    if (c.pause && c.rows == 0) {  // what sleeping costs beside what it costs us
      measure_futex(paused);
      measure_eventfd(paused);
    }
    measure(c, c.pause ? paused : rounds);
  }
  return 0;
}
