// Round trips between two processes over each transport: p50, p99 and the longest, in microseconds.
//
//   transport_bench [ROUNDS]      default 20000 a line; lines with pauses take a hundredth of that
//
// "sleep" pauses before each round, longer than either end spins, so that both must be woken; the
// pause is not counted. A body of 8192 bytes is one f32 row of 2048 columns each way.
#include <fmt/core.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

void measure(const Case& c, int rounds) {
  cpu_set_t all;
  ::sched_getaffinity(0, sizeof(all), &all);
  std::unique_ptr<Channel> channel = start(c);
  pin(c, 0);
  channel->set_limits(limits());
  const std::vector<std::byte> body(std::size_t{c.rows} * kColumns * 4, std::byte{1});
  Frame frame;
  std::vector<double> us;
  const int warm = c.pause ? 10 : 1000;
  for (int i = -warm; i < rounds; ++i) {
    if (c.pause) ::usleep(2000);
    const Deadline begin = Clock::now();
    CHECK(channel->send(header_of(c), body, after(1s)).ok());
    const Result<bool> came = channel->receive(frame, after(1s));
    CHECK(came.ok() && *came);
    if (i >= 0)
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  channel->close();
  ::sched_setaffinity(0, sizeof(all), &all);
  ::wait(nullptr);
  std::sort(us.begin(), us.end());
  fmt::print("{:<34} {:>8.2f} {:>8.2f} {:>9.1f}\n", c.name, us[us.size() / 2],
             us[us.size() * 99 / 100], us.back());
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
      {"rings, never spin, 8 KiB", AttachKind::rings, false, 0us, 1, false},
      {"unix stream, no body", AttachKind::stream, false, 0us, 0, false},
      {"unix stream, 8 KiB", AttachKind::stream, false, 0us, 1, false},
      {"unix stream, 128 KiB", AttachKind::stream, false, 0us, 16, false},
      {"tcp stream (loopback), 8 KiB", AttachKind::stream, true, 0us, 1, false},
  };
  fmt::print("{:<34} {:>8} {:>8} {:>9}\n", "round trip, us", "p50", "p99", "max");
  for (const Case& c : cases) measure(c, c.pause ? std::max(100, rounds / 100) : rounds);
  return 0;
}
