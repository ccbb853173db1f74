// Experts in a worker process: what the mode and the payload of its jobs cost, as a table.
//
//   worker_experts_bench TESSERA MODEL [RESIDENT% [PROMPT [GENERATE]]]
//
// One device of one thread runs the layers, one worker of one thread has the experts away. For each
// mode and payload a prompt is read in chunks of 512 and tokens are generated after it; jobs,
// pairs, bytes, the time that layers waited for sums and the time that the worker computed while
// nobody waited are those of the registry (docs/workers.md).
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>

#include "base/log.h"
#include "bench/away_experts.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

struct Setting {
  ExpertMode mode;
  ExpertPayload payload;
};

struct Arguments {
  std::string program;
  std::string model;
  double resident = 50.0;
  int prompt = 4248;
  int generate = 128;
};

struct Numbers {
  double seconds = 0;
  std::uint64_t calls = 0, pairs = 0, bytes = 0, wait_us = 0, hidden_us = 0;
};

Numbers numbers(const ExpertMetrics& m) {
  return {.calls = m.worker.calls.value(),
          .pairs = m.worker.pairs.value(),
          .bytes = m.bytes_out.value() + m.bytes_in.value(),
          .wait_us = m.worker.wait_us.value(),
          .hidden_us = m.worker.hidden_us.value()};
}

Numbers since(const Numbers& before, const Numbers& now, Clock::time_point begin) {
  return {.seconds = std::chrono::duration<double>(Clock::now() - begin).count(),
          .calls = now.calls - before.calls,
          .pairs = now.pairs - before.pairs,
          .bytes = now.bytes - before.bytes,
          .wait_us = now.wait_us - before.wait_us,
          .hidden_us = now.hidden_us - before.hidden_us};
}

void print(const char* phase, const Setting& setting, int tokens, const Numbers& n) {
  const double computed = static_cast<double>(n.wait_us + n.hidden_us);
  fmt::print("{:<8}{:<8}{:<6}{:>8}{:>10}{:>11.2f}{:>11.1f}{:>11.1f}{:>9.1f}%{:>10.2f}\n", phase,
             expert_mode_name(setting.mode), expert_payload_name(setting.payload), n.calls, n.pairs,
             static_cast<double>(n.bytes) / (1 << 20), static_cast<double>(n.wait_us) / 1e3,
             static_cast<double>(n.hidden_us) / 1e3,
             computed > 0 ? 100.0 * static_cast<double>(n.hidden_us) / computed : 0.0,
             tokens / n.seconds);
  std::fflush(stdout);
}

Status run(const Arguments& arguments, const Setting& setting) {
  constexpr int kChunk = 512;
  TESSERA_ASSIGN(
      const auto away,
      bench::AwayExperts::open({.program = arguments.program,
                                .model = arguments.model,
                                .resident = arguments.resident,
                                .context = arguments.prompt + arguments.generate,
                                .chunk = kChunk,
                                .options = {.mode = setting.mode, .payload = setting.payload}}));
  Numbers before = numbers(away->metrics);
  auto begin = Clock::now();
  for (int at = 0; at < arguments.prompt; at += kChunk) {
    const int rows = std::min(kChunk, arguments.prompt - at);
    TESSERA_TRY(away->feed(rows, at + rows == arguments.prompt));
  }
  print("prefill", setting, arguments.prompt, since(before, numbers(away->metrics), begin));
  before = numbers(away->metrics);
  begin = Clock::now();
  for (int i = 0; i < arguments.generate; ++i) TESSERA_TRY(away->feed(1, true));
  print("decode", setting, arguments.generate, since(before, numbers(away->metrics), begin));
  return {};
}

int bench_main(const Arguments& arguments) {
  set_log_level(LogLevel::warn);
  fmt::print("prompt {}, generate {}, {} % of the experts resident\n\n", arguments.prompt,
             arguments.generate, arguments.resident);
  fmt::print("{:<8}{:<8}{:<6}{:>8}{:>10}{:>11}{:>11}{:>11}{:>10}{:>10}\n", "phase", "mode", "type",
             "calls", "pairs", "MiB", "wait ms", "hidden ms", "hidden", "tok/s");
  for (const Setting& setting : {Setting{ExpertMode::stream, ExpertPayload::f32},
                                 Setting{ExpertMode::batched, ExpertPayload::f32},
                                 Setting{ExpertMode::batched, ExpertPayload::f16},
                                 Setting{ExpertMode::batched, ExpertPayload::bf16},
                                 Setting{ExpertMode::batched, ExpertPayload::int16}}) {
    if (const Status status = run(arguments, setting); !status) {
      fmt::print(stderr, "worker_experts_bench: {}\n", status.error().message);
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr,
               "usage: worker_experts_bench TESSERA MODEL [RESIDENT% [PROMPT [GENERATE]]]\n");
    return 2;
  }
  tessera::Arguments arguments{.program = argv[1], .model = argv[2]};
  if (argc > 3) arguments.resident = std::atof(argv[3]);
  if (argc > 4) arguments.prompt = std::atoi(argv[4]);
  if (argc > 5) arguments.generate = std::atoi(argv[5]);
  return tessera::bench_main(arguments);
}
