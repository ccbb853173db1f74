#include "engine/generation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sampling/choose.h"

namespace tessera {
namespace {

double seconds(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Generation::Generation(Submission submission, SequenceState sequence,
                       const text::Tokenizer& tokenizer, EngineClock::time_point now)
    : submission_(std::move(submission)),
      sequence_(std::move(sequence)),
      tokenizer_(&tokenizer),
      sampler_(submission_.request.sampling, submission_.seed),
      admitted_(now),
      last_token_(submission_.submitted) {
  for (const TokenId id : submission_.request.prompt) sampler_.record_prompt(id);
}

StepDemand Generation::demand() const {
  return {.prompt_left = fed_ < prompt_size() ? prompt_size() - fed_ : 0,
          .prompt_logits = submission_.request.prompt_logprobs};
}

bool Generation::needs_logits(int position) const {
  if (position + 1 < prompt_size()) return submission_.request.prompt_logprobs;
  return submission_.max_new > 0;
}

NextRow Generation::next_row() const {
  if (n_steps_ != 1 || fed_ + steps_[0].rows < prompt_size()) return NextRow::unknown;
  if (generated_ + 1 >= submission_.max_new) return NextRow::none;
  return sampler_.looks_back() ? NextRow::unknown : NextRow::sampled;
}

TokenId Generation::token_at(int position) const {
  if (position < prompt_size())
    return submission_.request.prompt[static_cast<std::size_t>(position)];
  if (n_steps_ == 0) return next_token_;
  const Step& before = steps_[0];
  return token_of_choice(before.first_logit_row + before.logit_rows - 1);
}

void Generation::begin_step(int rows, StepBatch& batch) {
  const int first_position = fed_ + (n_steps_ > 0 ? steps_[0].rows : 0);
  // Rows under way see what is given back here before others write there.
  sequence_.trim(first_position);
  // There is room already for a step that was taken back.
  sequence_.extend(first_position + rows - sequence_.length());
  const auto first_row = static_cast<int>(batch.tokens.size());
  Step step{.rows = rows, .first_logit_row = static_cast<int>(batch.logit_rows.size())};
  for (int i = 0; i < rows; ++i) {
    const int position = first_position + i;
    batch.tokens.push_back(token_at(position));
    if (!needs_logits(position)) continue;
    batch.logit_rows.push_back(first_row + i);
    batch.choices.push_back(choice(position, batch.logit_changes));
  }
  batch.sequences.push_back({.first_row = first_row,
                             .n_rows = rows,
                             .first_position = first_position,
                             .slot = sequence_.slot(),
                             .pages = sequence_.page_tables()});
  step.logit_rows = static_cast<int>(batch.logit_rows.size()) - step.first_logit_row;
  CHECK(n_steps_ < kMostUnderWay, "{} steps are under way", n_steps_);
  steps_[static_cast<std::size_t>(n_steps_++)] = step;
}

// Of the token after `position`.
TokenChoice Generation::choice(int position, std::vector<LogitChange>& changes) const {
  const GenerationRequest& request = submission_.request;
  const auto next = static_cast<std::size_t>(position) + 1;
  if (next < request.prompt.size())
    return {.given = request.prompt[next], .n_top = std::max(0, request.top_logprobs)};
  TokenChoice choice = sampler_.choice(next, changes);
  choice.n_top = request.top_logprobs;
  return choice;
}

void Generation::end_step(std::span<const ChosenToken> chosen, EngineClock::time_point now) {
  CHECK(n_steps_ > 0, "no step is under way");
  const Step step = std::exchange(steps_[0], steps_[1]);
  --n_steps_;
  auto logit_row = static_cast<std::size_t>(step.first_logit_row);
  step_prompt_rows_ = 0;
  step_sampled_ = false;
  for (int i = 0; i < step.rows && !done(); ++i) {
    const int position = fed_++;
    if (position < prompt_size()) ++step_prompt_rows_;
    if (!needs_logits(position)) continue;
    const ChosenToken& token = chosen[logit_row++];
    if (token.id == kNoToken)
      fail(no_token_error(token));
    else if (position + 1 < prompt_size())
      take_scored(token);
    else
      take_token(token, now);
  }
  if (fed_ < prompt_size()) return;
  if (!prompt_tokens_.empty()) event_.prompt_tokens = std::exchange(prompt_tokens_, {});
  if (submission_.max_new == 0 && !done()) finish(FinishReason::length, now);
}

void Generation::take_scored(const ChosenToken& scored) {
  prompt_tokens_.push_back({.id = scored.id,
                            .logprob = scored.logprob,
                            .top = scored.top,
                            .piece = std::string(tokenizer_->piece(scored.id, true))});
}

void Generation::take_token(const ChosenToken& chosen, EngineClock::time_point now) {
  const GenerationRequest& request = submission_.request;
  sampler_.record(chosen.id);
  next_token_ = chosen.id;
  if (++generated_ == 1) first_token_ = now;
  gap_s_ = seconds(std::exchange(last_token_, now), now);
  step_sampled_ = true;

  if (tokenizer_->is_eog(chosen.id) && !request.ignore_eos) {
    finish(FinishReason::stop, now);
    event_.finish->stop_token = chosen.id;
    return;
  }
  emit({.id = chosen.id, .logprob = chosen.logprob, .top = chosen.top, .piece = {}});
  if (submission_.stops.stopped())
    finish(FinishReason::stop, now);
  else if (generated_ == submission_.max_new)
    finish(FinishReason::length, now);
}

void Generation::emit(EmittedToken token) {
  token.piece = tokenizer_->piece(token.id, true);
  show(detokenizer_.feed(tokenizer_->piece(token.id, submission_.request.show_special)));
  event_.tokens.push_back(std::move(token));
}

void Generation::show(std::string_view text) {
  text::StopMatcher::Output output = submission_.stops.feed(text);
  event_.text += output.text;
  if (output.stop) stop_string_ = submission_.stops.strings()[*output.stop];
}

void Generation::finish(FinishReason reason, EngineClock::time_point now) {
  if (!submission_.stops.stopped()) {
    show(detokenizer_.flush());
    if (!submission_.stops.stopped()) event_.text += submission_.stops.flush();
  }
  const bool has_token = generated_ > 0;
  done_ = true;
  event_.finish = Finish{.reason = reason,
                         .stop_string = stop_string_,
                         .stop_token = std::nullopt,
                         .usage = {.prompt_tokens = prompt_size(),
                                   .generated_tokens = generated_,
                                   .queue_s = seconds(submission_.submitted, admitted_),
                                   .prompt_s = seconds(admitted_, has_token ? first_token_ : now),
                                   .generate_s = has_token ? seconds(first_token_, now) : 0.0,
                                   .seed = submission_.seed,
                                   .experts = experts_}};
}

void Generation::add_experts(const ExpertUse& step, double share) {
  if (!experts_) experts_.emplace();
  experts_->add(step, share);
}

void Generation::cancel(EngineClock::time_point now) {
  finish(FinishReason::cancelled, now);
}

void Generation::fail(Error error, Absence absence) {
  done_ = true;
  event_.error = std::move(error);
  event_.absence = absence;
}

bool Generation::has_event() const {
  return event_.finish || event_.error || !event_.tokens.empty() || !event_.prompt_tokens.empty();
}

GenerationEvent Generation::take_event() {
  return std::exchange(event_, {});
}

}  // namespace tessera
