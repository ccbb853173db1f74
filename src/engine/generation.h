// Generation: one admitted request, from its first prompt row to its last event.
//
//   Generation generation(std::move(submission), std::move(sequence), tokenizer, now);
//   loop: generation.begin_step(rows, batch);        // rows by plan_step(generation.demand())
//         forward(batch);
//         generation.end_step(chosen, now);
//         if (generation.has_event()) sink(generation.take_event());
//         until generation.done()
//
// The row behind the last one may be begun before that step's end, where next_row() says so: it is
// the token that is chosen there. Each end_step() is of the oldest step begun.
//
// Owned and driven by the engine's thread. Pages and slot go back when it is destroyed.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/step_batch.h"
#include "engine/step_planner.h"
#include "state/sequence_pool.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace tessera {

using EngineClock = std::chrono::steady_clock;

// A checked request on its way to the engine's thread.
struct Submission {
  RequestId id = 0;
  GenerationRequest request;
  EventSink sink;
  text::StopMatcher stops;
  std::uint64_t seed = 0;
  int max_new = 0;  // tokens to generate at most; prompt and they fit the context
  EngineClock::time_point submitted;

  int positions() const { return static_cast<int>(request.prompt.size()) + max_new; }
};

// The row behind those of the step under way: it has none, since that step is certain to end the
// generation; it is the token that is sampled there; or what it will be is not known yet.
enum class NextRow : std::uint8_t { none, sampled, unknown };

class Generation {
 public:
  Generation(Submission submission, SequenceState sequence, const text::Tokenizer& tokenizer,
             EngineClock::time_point now);

  RequestId id() const { return submission_.id; }
  const EventSink& sink() const { return submission_.sink; }
  int slot() const { return sequence_.slot(); }
  StepDemand demand() const;
  NextRow next_row() const;
  // Adds the next `rows` rows, and makes room for them.
  void begin_step(int rows, StepBatch& batch);
  // The last one is not begun after all.
  void take_back_step() { --n_steps_; }
  // `chosen` begins with this batch's first token; reads those that begin_step() asked for.
  void end_step(std::span<const ChosenToken> chosen, EngineClock::time_point now);

  // Its share of the experts of a step; before end_step().
  void add_experts(const ExpertUse& step, double share);

  // Ends it from outside.
  void cancel(EngineClock::time_point now);
  void fail(Error error, Absence absence = Absence::none);

  // Nothing more to compute; the last event may still have to be taken.
  bool done() const { return done_; }
  // Gives pages and slot back early. Only when done.
  void release() { sequence_ = SequenceState(); }
  bool has_event() const;
  GenerationEvent take_event();

  // For metrics, about the last end_step().
  int prompt_rows() const { return step_prompt_rows_; }
  bool sampled() const { return step_sampled_; }
  int generated() const { return generated_; }
  double since_last_token_s() const { return gap_s_; }  // since submit() for the first

 private:
  int prompt_size() const { return static_cast<int>(submission_.request.prompt.size()); }
  bool needs_logits(int position) const;
  TokenId token_at(int position) const;
  TokenChoice choice(int position, std::vector<LogitChange>& changes) const;
  void take_scored(const ChosenToken& scored);
  void take_token(const ChosenToken& chosen, EngineClock::time_point now);
  void emit(EmittedToken token);
  void show(std::string_view text);
  void finish(FinishReason reason, EngineClock::time_point now);

  Submission submission_;
  SequenceState sequence_;
  const text::Tokenizer* tokenizer_;
  SamplerState sampler_;
  text::Detokenizer detokenizer_;
  GenerationEvent event_;  // not yet delivered
  bool done_ = false;

  int fed_ = 0;  // positions whose rows were computed
  int generated_ = 0;
  TokenId next_token_ = 0;  // generated, not yet fed
  std::vector<EmittedToken> prompt_tokens_;
  std::string stop_string_;

  std::optional<ExpertUse> experts_;

  struct Step {
    int rows = 0;
    int first_logit_row = 0;  // in its batch
    int logit_rows = 0;
  };
  std::array<Step, kMostUnderWay> steps_;  // begun and not ended, oldest first
  int n_steps_ = 0;
  // About the last end_step().
  int step_prompt_rows_ = 0;
  bool step_sampled_ = false;
  double gap_s_ = 0.0;

  EngineClock::time_point admitted_;
  EngineClock::time_point first_token_;
  EngineClock::time_point last_token_;
};

}  // namespace tessera
