#include "engine/generation.h"

#include <utility>

namespace tessera {
namespace {

double seconds(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Generation::Generation(Submission submission, SequenceState sequence,
                       const GenerationContext& context, EngineClock::time_point now)
    : submission_(std::move(submission)),
      sequence_(std::move(sequence)),
      context_(&context),
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

void Generation::begin_step(int rows, StepBatch& batch) {
  sequence_.trim(fed_);
  sequence_.extend(rows);
  const auto first_row = static_cast<int>(batch.tokens.size());
  first_logit_row_ = static_cast<int>(batch.logit_rows.size());
  for (int i = 0; i < rows; ++i) {
    const int position = fed_ + i;
    batch.tokens.push_back(position < prompt_size()
                               ? submission_.request.prompt[static_cast<std::size_t>(position)]
                               : next_token_);
    if (needs_logits(position)) batch.logit_rows.push_back(first_row + i);
  }
  batch.sequences.push_back({.first_row = first_row,
                             .n_rows = rows,
                             .first_position = fed_,
                             .slot = sequence_.slot(),
                             .pages = sequence_.page_tables()});
  step_rows_ = rows;
}

void Generation::end_step(std::span<const float> logits, SamplerScratch& scratch,
                          EngineClock::time_point now) {
  const auto n_vocab = static_cast<std::size_t>(context_->n_vocab);
  auto logit_row = static_cast<std::size_t>(first_logit_row_);
  step_prompt_rows_ = 0;
  step_sampled_ = false;
  for (int i = 0; i < step_rows_ && !done(); ++i) {
    const int position = fed_++;
    if (position < prompt_size()) ++step_prompt_rows_;
    if (!needs_logits(position)) continue;
    const auto row = logits.subspan(logit_row++ * n_vocab, n_vocab);
    Status status = position + 1 < prompt_size() ? score_prompt(row, position, scratch)
                                                 : choose(row, scratch, now);
    if (!status) fail(std::move(status).error());
  }
  step_rows_ = 0;
  if (fed_ < prompt_size()) return;
  if (!prompt_tokens_.empty()) event_.prompt_tokens = std::exchange(prompt_tokens_, {});
  if (submission_.max_new == 0 && !done()) finish(FinishReason::length, now);
}

Status Generation::score_prompt(std::span<const float> row, int position, SamplerScratch& scratch) {
  const TokenId id = submission_.request.prompt[static_cast<std::size_t>(position) + 1];
  TESSERA_ASSIGN(ScoredToken scored,
                 score(row, context_->sampleable,
                       {.id = id, .n_top = submission_.request.top_logprobs}, scratch));
  prompt_tokens_.push_back({.id = id,
                            .logprob = scored.logprob,
                            .top = std::move(scored.top),
                            .piece = std::string(context_->tokenizer.piece(id, true))});
  return {};
}

Status Generation::choose(std::span<const float> row, SamplerScratch& scratch,
                          EngineClock::time_point now) {
  const GenerationRequest& request = submission_.request;
  TESSERA_ASSIGN(const TokenId id, sample(row, context_->sampleable, sampler_,
                                          static_cast<std::uint64_t>(fed_), scratch));
  EmittedToken token{.id = id, .logprob = 0.0f, .top = {}, .piece = {}};
  if (request.top_logprobs >= 0) {
    TESSERA_ASSIGN(ScoredToken scored, score(row, context_->sampleable,
                                             {.id = id, .n_top = request.top_logprobs}, scratch));
    token.logprob = scored.logprob;
    token.top = std::move(scored.top);
  }
  sampler_.record(id);
  next_token_ = id;
  if (++generated_ == 1) first_token_ = now;
  gap_s_ = seconds(std::exchange(last_token_, now), now);
  step_sampled_ = true;

  if (context_->tokenizer.is_eog(id) && !request.ignore_eos) {
    finish(FinishReason::stop, now);
    event_.finish->stop_token = id;
    return {};
  }
  emit(std::move(token));
  if (submission_.stops.stopped())
    finish(FinishReason::stop, now);
  else if (generated_ == submission_.max_new)
    finish(FinishReason::length, now);
  return {};
}

void Generation::emit(EmittedToken token) {
  token.piece = context_->tokenizer.piece(token.id, true);
  show(detokenizer_.feed(context_->tokenizer.piece(token.id, submission_.request.show_special)));
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
