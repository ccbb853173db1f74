// LocalEngine: continuous batching over one forward pass.
//
//   TESSERA_ASSIGN(auto engine, LocalEngine::create(options, {pipeline, pool, tokenizer,
//   metrics})); engine->submit(...);                                // engine.h
//
// One thread of its own drives everything below it. A step holds one row of every decoding sequence
// and prompt rows of the sequences before their first token (step_planner.h). A request is
// admitted, first come first served, when a slot and all pages that it can ever need are free; so
// what runs never lacks memory, and what does not fit waits at the head of the queue. A cancelled
// request leaves between two steps, wherever it stands. An idle engine sleeps.
//
// Where the forward pass may begin a batch (ForwardPass::may_begin), the next step is begun before
// the tokens of this one are read, so that the device does not wait for the host. That is when of
// each sequence that runs the next row is foreseeable but for its token (Generation::next_row), and
// nobody waits who could be admitted. A sequence whose end is found in a step has a row in the
// next one in vain.
//
// A forward pass that fails because a shard was lost (ErrorCode::unavailable) ends every request
// that runs, since each has a part of its state there; those that come later are refused until the
// shard is back. One that spoilt some sequences alone (ForwardPass::spoilt) ends their requests,
// and no token is taken from what comes after it. Any other failure is fatal: every request gets
// the error and no new one is taken. A row that cannot be sampled (no finite logit) ends its own
// request only. Where a shard is to change over
// (ForwardPass::restart_due), requests wait a while for those that run (hold_back.h).
//
// What create() is given must outlive the engine, and nobody else may use the forward pass and the
// pool meanwhile. The destructor cancels what runs. drain() must not be called from a sink.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "engine/engine.h"
#include "engine/engine_metrics.h"
#include "engine/generation.h"
#include "engine/hold_back.h"
#include "engine/local_engine_options.h"
#include "engine/step_batch.h"
#include "engine/step_planner.h"
#include "engine/steps_under_way.h"
#include "experts/expert_metrics.h"
#include "pipeline/pipeline.h"
#include "state/sequence_pool.h"
#include "text/tokenizer.h"

namespace tessera {

class LocalEngine final : public Engine {
 public:
  struct Parts {
    ForwardPass& forward;
    SequencePool& pool;
    const text::Tokenizer& tokenizer;
    MetricsRegistry& metrics;
    const ExpertMetrics* experts = nullptr;  // of a model with experts away
  };

  static Result<std::unique_ptr<LocalEngine>> create(const LocalEngineOptions& options,
                                                     const Parts& parts);
  ~LocalEngine() override;

  Result<RequestId> submit(GenerationRequest request, EventSink sink) override;
  void cancel(RequestId id) override;
  EngineStatus status() const override;
  void drain(double grace_s) override;

 private:
  LocalEngine(const LocalEngineOptions& options, const Parts& parts);

  // --- The engine's thread ---
  void run();
  bool take_mail();
  void cancel_now(RequestId id);
  void cancel_everything();
  void admit_waiting();
  bool holds_back();
  void step();
  void plan_rows();
  bool plan_ahead();
  void begin_rows(bool prompts, StepUnderWay& step);
  void end_step(const Status& status);
  void end_in_vain();
  void count_step();
  void deliver();
  void observe(const Generation& generation);
  void share_experts(const StepUnderWay& step);
  void end_waiting(const Submission& submission, GenerationEvent event);
  bool fail_spoilt();
  void fail_step(const Error& error);
  void fail_running(const Error& error);
  Absence absence_of(const Error& error) const;
  void fail_waiting(const Error& error);
  void fail_everything(const Error& error);
  void publish_counts();
  bool idle() const { return running_.empty() && waiting_.empty(); }

  const LocalEngineOptions options_;  // context resolved
  const StepLimits limits_;
  ForwardPass& forward_;
  SequencePool& pool_;
  const text::Tokenizer& tokenizer_;
  EngineMetrics metrics_;

  // Shared with callers.
  mutable std::mutex mutex_;
  std::condition_variable wake_;    // for the engine: mail_
  std::condition_variable rested_;  // for drain(): resting_
  std::vector<Submission> inbox_;
  std::vector<RequestId> cancels_;
  bool accepting_ = true;
  bool cancel_all_ = false;
  bool stop_ = false;
  bool resting_ = true;  // the engine sleeps, every event was delivered
  std::string fault_;
  RequestId last_id_ = 0;
  std::mt19937_64 seeds_;
  std::atomic<bool> mail_{false};    // something above changed
  std::atomic<int> outstanding_{0};  // submitted and not ended
  std::atomic<int> running_count_{0};

  // The engine thread's own.
  std::vector<Submission> taken_;
  std::vector<RequestId> taken_cancels_;
  std::deque<Submission> waiting_;
  std::vector<std::unique_ptr<Generation>> running_;  // in order of admission
  std::vector<StepDemand> demands_;
  std::vector<int> rows_;
  StepTurn turn_ = StepTurn::all;  // of the step that was planned last
  StepBatch batch_;                // the one that is planned
  StepsUnderWay steps_;
  EngineClock::time_point step_end_;  // of the last one that ended
  HoldBack hold_back_;
  const ExpertMetrics* const experts_;  // may be null
  ExpertUse experts_shared_;            // of its totals: told to requests

  std::thread thread_;
};

}  // namespace tessera
