// Answering on the terminal: an engine whose current answer Ctrl-C can cancel.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/config.h"
#include "cli/text_model.h"
#include "engine/engine.h"
#include "engine/generate.h"

namespace tessera::cli {

// Forwards to an engine and remembers the request under way.
class CancellableEngine final : public Engine {
 public:
  explicit CancellableEngine(Engine& engine) : engine_(engine) {}

  Result<RequestId> submit(GenerationRequest request, EventSink sink) override;
  void cancel(RequestId id) override { engine_.cancel(id); }
  EngineStatus status() const override { return engine_.status(); }
  void drain(double grace_s) override { engine_.drain(grace_s); }

  // From any thread. False when no answer is under way or it was cancelled before.
  bool cancel_current();
  void end_answer();

 private:
  Engine& engine_;
  std::mutex mutex_;
  std::optional<RequestId> current_;
};

// The request that the options describe, for this prompt.
GenerationRequest request_for(const Config& config, std::vector<TokenId> prompt);

// Runs it; streams text to standard output if `stream`.
Result<Generated> answer(CancellableEngine& engine, GenerationRequest request, bool stream);

// "12 prompt tokens in 0.10 s (120.0/s), 64 tokens in 2.00 s (32.0/s)", to the log;
// and a line about experts where any are away.
void log_speed(const Finish& finish);

// Reads turns from standard input until it ends or says /exit. Returns the exit code.
int chat(const Config& config, const TextModel& text, CancellableEngine& engine);

}  // namespace tessera::cli
