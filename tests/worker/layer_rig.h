// A golden model with its later layers in a worker, for tests of faults.
#pragma once

#include "base/log.h"
#include "tests/golden_data.h"
#include "tests/worker/fault.h"
#include "tests/worker/layer_topology.h"
#include "tests/worker/process_counts.h"

namespace tessera::testing {

using Clock = std::chrono::steady_clock;

// Of those that are waited for in vain. The machine may stand still for less.
inline constexpr std::chrono::milliseconds kJobLimit{kTimeScale == 1 ? 3000 : 6000};

inline const std::string& model_path() {
  static const std::string path = TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe-bf16.gguf";
  return path;
}

inline std::span<const std::int32_t> prompt() {
  static const GoldenData golden =
      GoldenData::load(TESSERA_SOURCE_DIR "/tests/data/golden/qwen35moe.bin");
  return golden.ints("p300_ids");
}

// What is asked to see that all is well; less where a sanitizer makes it slow.
inline std::span<const std::int32_t> question() {
  return prompt().first(kTimeScale == 1 ? 300 : 80);
}

inline const std::vector<float>& plain_logits() {
  static const std::vector<float> logits = [] {
    ModelRunner plain(model_path(), {.threads = 1});
    return plain.logits(question(), 64);
  }();
  return logits;
}

struct LayerRig {
  explicit LayerRig(Link to, std::chrono::milliseconds job_limit = kNever) : link(to) {
    workers.transport = transport_of(link);
    workers.job_limit = job_limit;
    workers.lifecycle.heartbeat = std::chrono::milliseconds(10);
    workers.lifecycle.suspect_after = 50;
    workers.lifecycle.backoff_first = std::chrono::milliseconds(1);
    workers.lifecycle.backoff_most = std::chrono::milliseconds(20);
  }
  // A worker that goes bad like this on request (fault.h).
  void turns(const std::string& how) {
    workers.binary = FAKE_WORKER;
    workers.words = {"worker", "turns_" + how};
  }
  void prepare() {
    if (link == Link::tcp) workers.listen(model_path());
  }
  Status try_load(const std::string& topology = "LW") {
    runner = std::make_unique<ModelRunner>(model_path(),
                                           on_topology(model_path(), topology, options, workers));
    if (!runner->ready()) return *runner->failure();
    sequence = runner->start(400);
    return {};
  }
  void load(const std::string& topology = "LW") {
    prepare();
    const Status loaded = try_load(topology);
    ASSERT_TRUE(loaded) << loaded.error().message;
  }
  int pid() const {
    if (workers.listening != nullptr) return workers.listening->pid();
    return first_child();
  }
  // Does for a worker at an address what nobody else does.
  void revive(Fault fault) {
    if (workers.listening == nullptr) return;
    if (fault == Fault::stop) send_signal(pid(), SIGCONT);
    if (fault != Fault::kill && fault != Fault::exit) return;
    workers.listening->end();
    workers.listening->start();
  }

  // One step of the sequence.
  Status step(int tokens, bool logits) {
    const auto from = prompt().subspan(static_cast<std::size_t>(sequence.position) % 150);
    sequence.state.extend(tokens);
    const SequenceRows rows{.n_rows = tokens,
                            .first_position = sequence.position,
                            .slot = sequence.state.slot(),
                            .pages = sequence.state.page_tables()};
    const std::int32_t last = tokens - 1;
    const BatchView batch{.tokens = from.first(static_cast<std::size_t>(tokens)),
                          .sequences = {&rows, 1},
                          .logit_rows = {&last, logits ? std::size_t{1} : 0}};
    Status status = runner->pipeline().forward(batch);
    sequence.position += tokens;
    return status;
  }
  Status run(bool prefill) {
    if (prefill) return step(150, true);
    TESSERA_TRY(step(5, true));
    for (int i = 0; i < 20; ++i) TESSERA_TRY(step(1, true));
    return {};
  }
  // Drops the sequence and waits until the worker is there again; then all is as at the start.
  void expect_recovery() {
    ASSERT_TRUE(eventually([&] { return runner->pipeline().restart().ok(); }));
    sequence = {};
    EXPECT_TRUE(runner->logits(question(), 64) == plain_logits());
    sequence = runner->start(400);
  }

  Link link;
  LayerWorkers workers;
  RunnerOptions options;
  std::unique_ptr<ModelRunner> runner;
  ModelRunner::Sequence sequence;
};

}  // namespace tessera::testing
