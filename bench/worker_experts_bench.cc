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

#include "base/check.h"
#include "base/log.h"
#include "pipeline/pipeline.h"
#include "worker/remote_experts.h"

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

// Token ids do not matter, only that they differ.
TokenId token(int i, const ModelSpec& spec) {
  return static_cast<TokenId>((i * 7919LL + 13) % std::min(spec.n_token, spec.n_vocab));
}

Status feed(Pipeline& pipeline, SequenceState& state, int position, int rows, bool logits) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < rows; ++i) tokens.push_back(token(position + i, pipeline.spec()));
  state.extend(rows);
  const SequenceRows sequence{.n_rows = rows,
                              .first_position = position,
                              .slot = state.slot(),
                              .pages = state.page_tables()};
  const std::int32_t last = rows - 1;
  TESSERA_TRY(pipeline.forward({.tokens = tokens,
                                .sequences = {&sequence, 1},
                                .logit_rows = {&last, logits ? std::size_t{1} : 0}}));
  state.trim(position + rows);
  return {};
}

Status run(const Arguments& arguments, const Setting& setting) {
  TESSERA_ASSIGN(const Model model, Model::open(arguments.model));
  MetricsRegistry registry;
  ExpertMetrics metrics(registry);
  Inventory inventory = probe_inventory(1);
  inventory.expert_workers.push_back({.name = "worker:0", .budget = std::int64_t{1} << 40});
  constexpr int kChunk = 512;
  TESSERA_ASSIGN(const Plan plan, make_plan(model, inventory,
                                            {.context = arguments.prompt + arguments.generate,
                                             .prefill_chunk = kChunk,
                                             .expert_resident = arguments.resident}));
  std::unique_ptr<worker::ExpertConnection> connection;
  DeviceOptions options;
  options.experts = {.options = {.mode = setting.mode, .payload = setting.payload},
                     .metrics = &metrics};
  options.experts.workers = [&](const ShardLayout& layout) {
    worker::WorkerSite site{.name = "worker:0", .role = worker::Role::experts};
    site.spawn =
        worker::SpawnOptions{.binary = arguments.program,
                             .arguments = {"worker", arguments.model, "--config", "/dev/null",
                                           "--threads", "1", "--log-level", "warn"}};
    auto made = worker::ExpertConnection::create(
        site, {.experts = layout.experts, .max_rows = layout.max_rows, .payload = setting.payload},
        model, registry);
    CHECK(made.ok(), "{}", made.error().message);
    connection = *std::move(made);
    const Status ready = connection->wait_ready();
    CHECK(ready.ok(), "{}", ready.error().message);
    std::vector<std::unique_ptr<ExpertExecutor>> executors;
    executors.push_back(connection->executor());
    return executors;
  };
  TESSERA_ASSIGN(auto shards, open_shards(plan, options));
  TESSERA_ASSIGN(auto pipeline, Pipeline::load(model, plan, std::move(shards), {}));
  SequencePool pool(sequence_pool_layout(plan));
  TESSERA_ASSIGN(SequenceState state, pool.admit(arguments.prompt + arguments.generate));
  pipeline->reset_slot(state.slot());

  Numbers before = numbers(metrics);
  auto begin = Clock::now();
  for (int at = 0; at < arguments.prompt; at += kChunk) {
    const int rows = std::min(kChunk, arguments.prompt - at);
    TESSERA_TRY(feed(*pipeline, state, at, rows, at + rows == arguments.prompt));
  }
  print("prefill", setting, arguments.prompt, since(before, numbers(metrics), begin));
  before = numbers(metrics);
  begin = Clock::now();
  for (int i = 0; i < arguments.generate; ++i)
    TESSERA_TRY(feed(*pipeline, state, arguments.prompt + i, 1, true));
  print("decode", setting, arguments.generate, since(before, numbers(metrics), begin));
  pipeline.reset();
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
                                 Setting{ExpertMode::batched, ExpertPayload::bf16}}) {
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
