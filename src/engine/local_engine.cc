#include "engine/local_engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/request_check.h"
#include "sampling/choose.h"

namespace tessera {

Result<std::unique_ptr<LocalEngine>> LocalEngine::create(const LocalEngineOptions& options,
                                                         const Parts& parts) {
  const ModelSpec& spec = parts.forward.spec();
  TESSERA_ASSIGN(const LocalEngineOptions resolved, resolved_options(options, parts.pool, spec));
  if (SampleableTokens(spec).empty())
    return Error::make(ErrorCode::invalid, "no token of the vocabulary may be sampled");
  std::unique_ptr<LocalEngine> engine(new LocalEngine(resolved, parts));
  engine->thread_ = std::thread([raw = engine.get()] { raw->run(); });
  return engine;
}

LocalEngine::LocalEngine(const LocalEngineOptions& options, const Parts& parts)
    : options_(options),
      limits_{.max_rows = options.max_rows,
              .max_logit_rows = options.max_logit_rows,
              .prefill_rows = options.prefill_chunk,
              .max_chunk = parts.pool.layout().max_chunk},
      forward_(parts.forward),
      pool_(parts.pool),
      tokenizer_(parts.tokenizer),
      metrics_(parts.metrics),
      seeds_([] {
        std::random_device device;
        return std::uint64_t{device()} << 32 | device();
      }()),
      hold_back_(options.hold_back),
      experts_(parts.experts) {
  const auto parallel = static_cast<std::size_t>(options.parallel);
  running_.reserve(parallel);
  demands_.reserve(parallel);
  rows_.reserve(parallel);
  steps_.reserve(options.parallel);
  batch_.reserve({.rows = options.max_rows,
                  .sequences = options.parallel,
                  .logit_rows = options.max_logit_rows});
}

LocalEngine::~LocalEngine() {
  drain(0.0);
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    mail_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

// --- Callers' threads ---

Result<RequestId> LocalEngine::submit(GenerationRequest request, EventSink sink) {
  CHECK(sink != nullptr, "a request needs a sink");
  TESSERA_ASSIGN(Submission submission,
                 checked(std::move(request),
                         {.context = options_.context, .n_token = forward_.spec().n_token}));
  submission.sink = std::move(sink);
  if (Status ready = forward_.ready(); !ready) {
    metrics_.rejected_unavailable.add();
    return std::move(ready).error();
  }
  RequestId id = 0;
  {
    std::lock_guard lock(mutex_);
    if (!fault_.empty())
      return Error::make(ErrorCode::unavailable, "the engine stopped: {}", fault_);
    if (!accepting_)
      return Error::make(ErrorCode::unavailable, "the engine is stopping and takes no requests");
    if (outstanding_ >= options_.parallel + options_.max_queue) {
      metrics_.rejected_queue.add();
      return Error::make(ErrorCode::exhausted, "the queue is full: {} requests run or wait",
                         outstanding_.load());
    }
    ++outstanding_;
    id = submission.id = ++last_id_;
    // Within 53 bits: clients read numbers as doubles, and the seed is there to be sent again.
    const std::uint64_t random_seed = seeds_() >> 11;
    submission.seed = submission.request.sampling.seed.value_or(random_seed);
    inbox_.push_back(std::move(submission));
    resting_ = false;
    mail_ = true;
  }
  wake_.notify_one();
  return id;
}

void LocalEngine::cancel(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    cancels_.push_back(id);
    mail_ = true;
  }
  wake_.notify_one();
}

EngineStatus LocalEngine::status() const {
  EngineStatus status;
  status.running = running_count_;
  status.queued = std::max(0, outstanding_ - status.running);
  status.max_queue = options_.max_queue;
  status.parallel = options_.parallel;
  status.context = options_.context;
  {
    std::lock_guard lock(mutex_);
    status.healthy = fault_.empty();
    status.fault = fault_;
  }
  if (!status.healthy) return status;
  if (Status ready = forward_.ready(); !ready) {
    status.recovering = true;
    status.absence = forward_.absence();
    status.fault = std::move(ready.error().message);
  }
  status.away = forward_.away();
  return status;
}

void LocalEngine::drain(double grace_s) {
  CHECK(std::this_thread::get_id() != thread_.get_id(), "drain() waits for its own sink");
  constexpr double kLongest = 1e6;
  const double grace = grace_s > 0.0 ? std::min(grace_s, kLongest) : 0.0;
  std::unique_lock lock(mutex_);
  accepting_ = false;
  if (rested_.wait_for(lock, std::chrono::duration<double>(grace), [this] { return resting_; }))
    return;
  cancel_all_ = true;
  mail_ = true;
  wake_.notify_one();
  rested_.wait(lock, [this] { return resting_; });
}

// --- The engine's thread ---

void LocalEngine::run() {
  while (take_mail()) {
    // Of steps that were under way in later shards, before more rows follow them.
    if (fail_spoilt()) deliver();
    admit_waiting();
    if (!running_.empty()) step();
  }
}

bool LocalEngine::take_mail() {
  // A plain look at the flag: a decode step takes no lock unless there is something.
  if (!idle() && !mail_.load(std::memory_order_relaxed)) return true;
  bool cancel_all = false;
  {
    std::unique_lock lock(mutex_);
    while (idle() && !mail_) {
      resting_ = true;
      rested_.notify_all();
      wake_.wait(lock);
    }
    resting_ = false;
    mail_ = false;
    if (stop_) return false;
    std::swap(taken_, inbox_);
    std::swap(taken_cancels_, cancels_);
    cancel_all = std::exchange(cancel_all_, false);
  }
  for (Submission& submission : taken_) waiting_.push_back(std::move(submission));
  taken_.clear();
  for (const RequestId id : taken_cancels_) cancel_now(id);
  taken_cancels_.clear();
  if (cancel_all) cancel_everything();
  deliver();
  return true;
}

void LocalEngine::cancel_now(RequestId id) {
  const auto now = EngineClock::now();
  for (const auto& generation : running_)
    if (generation->id() == id && !generation->done()) generation->cancel(now);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [id](const Submission& waiting) { return waiting.id == id; });
  if (found == waiting_.end()) return;
  const Submission submission = std::move(*found);
  waiting_.erase(found);
  Finish finish;
  finish.reason = FinishReason::cancelled;
  finish.usage.prompt_tokens = static_cast<int>(submission.request.prompt.size());
  finish.usage.queue_s = std::chrono::duration<double>(now - submission.submitted).count();
  finish.usage.seed = submission.seed;
  GenerationEvent event;
  event.finish = std::move(finish);
  end_waiting(submission, std::move(event));
}

void LocalEngine::cancel_everything() {
  while (!waiting_.empty()) cancel_now(waiting_.front().id);
  for (const auto& generation : running_) cancel_now(generation->id());
}

void LocalEngine::end_waiting(const Submission& submission, GenerationEvent event) {
  if (event.finish)
    metrics_.finished(event.finish->reason).add();
  else
    metrics_.count_failure(event.absence);
  --outstanding_;
  publish_counts();
  submission.sink(std::move(event));
}

void LocalEngine::admit_waiting() {
  if (waiting_.empty() || holds_back()) return;
  // With no sequence alive nothing is lost where a shard has to begin anew.
  if (running_.empty())
    if (const Status ready = forward_.restart(); !ready) return fail_waiting(ready.error());
  while (!waiting_.empty() && running_.size() < static_cast<std::size_t>(options_.parallel)) {
    auto sequence = pool_.admit(waiting_.front().positions());
    // Something that runs will give back what is missing: first come, first served.
    if (!sequence && !running_.empty() && sequence.error().code == ErrorCode::exhausted) return;
    Submission submission = std::move(waiting_.front());
    waiting_.pop_front();
    if (!sequence) {
      GenerationEvent event;
      event.error = std::move(sequence).error();
      end_waiting(submission, std::move(event));
      continue;
    }
    const auto now = EngineClock::now();
    metrics_.queue_seconds.observe(
        std::chrono::duration<double>(now - submission.submitted).count());
    running_.push_back(
        std::make_unique<Generation>(std::move(submission), *std::move(sequence), tokenizer_, now));
    forward_.reset_slot(running_.back()->slot());
    publish_counts();
  }
}

bool LocalEngine::holds_back() {
  const bool may_come = running_.size() < static_cast<std::size_t>(options_.parallel);
  return may_come && !running_.empty() &&
         hold_back_.holds(forward_.restart_due(), EngineClock::now());
}

void LocalEngine::step() {
  if (steps_.empty()) {
    plan_rows();
    if (!forward_.may_begin(batch_.view())) return end_step(forward_.forward(batch_.view()));
    forward_.begin(batch_.view());
  }
  if (plan_ahead()) forward_.begin(batch_.view());
  end_step(forward_.end());
}

// The next step, where the tokens of all steps before are known.
void LocalEngine::plan_rows() {
  StepUnderWay& step = steps_.add(EngineClock::now());
  demands_.clear();
  for (const auto& generation : running_) demands_.push_back(generation->demand());
  rows_.assign(running_.size(), 0);
  turn_ = options_.prompts_alone ? next_turn(demands_, turn_) : StepTurn::all;
  plan_step(demands_, limits_, turn_, rows_);
  batch_.clear();
  // What is sampled is waited for, and what stands behind it is not.
  begin_rows(false, step);
  begin_rows(true, step);
}

// The step behind the one under way, whose tokens nobody here knows yet; false: it has to wait.
bool LocalEngine::plan_ahead() {
  if (mail_.load(std::memory_order_relaxed)) return false;
  demands_.assign(running_.size(), {});
  rows_.assign(running_.size(), 0);
  bool any = false;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const NextRow next = running_[i]->next_row();
    if (next == NextRow::unknown) return false;
    rows_[i] = next == NextRow::sampled ? 1 : 0;
    any |= rows_[i] > 0;
  }
  if (!any) return false;
  StepUnderWay& step = steps_.add(EngineClock::now());
  batch_.clear();
  begin_rows(false, step);
  if (forward_.may_begin(batch_.view())) return true;
  for (const StepUnderWay::Part& part : step.parts) part.generation->take_back_step();
  steps_.take_back();
  return false;
}

// The rows of prompts, or those of sequences that decode.
void LocalEngine::begin_rows(bool prompts, StepUnderWay& step) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (rows_[i] == 0 || (demands_[i].prompt_left > 0) != prompts) continue;
    running_[i]->begin_step(rows_[i], batch_);
    step.parts.push_back({.generation = running_[i].get(), .rows = rows_[i]});
  }
  step.rows = batch_.view().rows();
  step.choices = batch_.choices.size();
}

// Hands out what has come of the oldest step.
void LocalEngine::end_step(const Status& status) {
  const StepUnderWay& step = steps_.oldest();
  if (experts_ != nullptr) share_experts(step);
  if (!status && !forward_.keeps_state()) return fail_step(status.error());
  fail_spoilt();
  std::span<const ChosenToken> chosen;
  if (step.choices > 0) chosen = forward_.chosen();
  CHECK(chosen.size() == step.choices, "{} tokens for {} rows", chosen.size(), step.choices);
  const auto now = EngineClock::now();
  for (const StepUnderWay::Part& part : step.parts) {
    if (part.generation == nullptr || part.generation->done()) continue;
    part.generation->end_step(chosen, now);
    observe(*part.generation);
  }
  count_step();
  deliver();
}

// The oldest step has ended. One that was begun ahead takes its time from the end of the one
// before.
void LocalEngine::count_step() {
  const StepUnderWay& step = steps_.oldest();
  const auto start = std::max(step.begun, step_end_);
  step_end_ = EngineClock::now();
  metrics_.step_rows.observe(static_cast<double>(step.rows));
  metrics_.step_seconds.observe(std::chrono::duration<double>(step_end_ - start).count());
  steps_.end_oldest();
}

// Steps under way that nobody waits for any more.
void LocalEngine::end_in_vain() {
  while (!steps_.empty()) {
    if (const Status status = forward_.end(); !status) return fail_step(status.error());
    count_step();
  }
}

// What the experts of a step cost belongs to its requests, by their rows. The end of a step may
// still be under way in later shards; the rest of it is then in the next step's.
void LocalEngine::share_experts(const StepUnderWay& step) {
  const ExpertUse totals = experts_->totals();
  ExpertUse use = totals;
  use.add(experts_shared_, -1.0);
  experts_shared_ = totals;
  for (const StepUnderWay::Part& part : step.parts)
    if (part.generation != nullptr)
      part.generation->add_experts(use, static_cast<double>(part.rows) / step.rows);
}

void LocalEngine::observe(const Generation& generation) {
  metrics_.prompt_tokens.add(static_cast<std::uint64_t>(generation.prompt_rows()));
  if (!generation.sampled()) return;
  metrics_.generated_tokens.add();
  Histogram& latency =
      generation.generated() == 1 ? metrics_.first_token_seconds : metrics_.inter_token_seconds;
  latency.observe(generation.since_last_token_s());
}

void LocalEngine::deliver() {
  bool ended = false;
  for (const auto& generation : running_) {
    if (!generation->has_event()) continue;
    GenerationEvent event = generation->take_event();
    if (generation->done()) {
      // Before the last event goes out, so that its receiver finds the slot free.
      ended = true;
      generation->release();
      if (event.error)
        metrics_.count_failure(event.absence);
      else
        metrics_.finished(event.finish->reason).add();
      --running_count_;
      --outstanding_;
    }
    generation->sink()(std::move(event));
  }
  if (!ended) return;
  steps_.forget_ended();
  std::erase_if(running_, [](const auto& generation) { return generation->done(); });
  publish_counts();
  if (running_.empty()) end_in_vain();
}

void LocalEngine::publish_counts() {
  running_count_ =
      static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                     [](const auto& generation) { return !generation->done(); }));
  metrics_.running.set(running_count_);
  metrics_.queued.set(std::max(0, outstanding_ - running_count_));
}

}  // namespace tessera
