#include "cli/bench_run.h"

#include <algorithm>
#include <chrono>

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

double elapsed(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

BenchRun::BenchRun(LoadedModel& loaded, int vocabulary)
    : loaded_(loaded), tokens_(0, vocabulary - 1) {}

Result<std::vector<BenchRun::Sequence>> BenchRun::start(const BenchCase& test) {
  std::vector<Sequence> sequences;
  for (int i = 0; i < test.batch; ++i) {
    TESSERA_ASSIGN(SequenceState state, loaded_.pool->admit(test.depth + test.tokens));
    loaded_.pipeline->reset_slot(state.slot());
    sequences.push_back({.state = std::move(state)});
    if (test.depth > 0) TESSERA_TRY(feed_prompt(sequences.back(), test.depth, true));
  }
  TESSERA_TRY(loaded_.pipeline->finish());
  return sequences;
}

Status BenchRun::feed_prompt(Sequence& sequence, int tokens, bool last_logits) {
  for (int fed = 0; fed < tokens;) {
    const int n = std::min(loaded_.plan.prefill_chunk, tokens - fed);
    row_tokens_.resize(static_cast<std::size_t>(n));
    std::generate(row_tokens_.begin(), row_tokens_.end(), [this] { return random_token(); });
    sequence.state.extend(n);
    rows_.assign(1, {.n_rows = n,
                     .first_position = sequence.position,
                     .slot = sequence.state.slot(),
                     .pages = sequence.state.page_tables()});
    logit_rows_.clear();
    fed += n;
    if (last_logits && fed == tokens) logit_rows_.push_back(n - 1);
    TESSERA_TRY(loaded_.pipeline->forward(batch()));
    sequence.position += n;
    sequence.state.trim(sequence.position);
  }
  return {};
}

Status BenchRun::decode(std::vector<Sequence>& sequences, int steps) {
  Pipeline& pipeline = *loaded_.pipeline;
  int planned = 0, begun = 0;
  for (int ended = 0; ended < steps; ++ended) {
    while (begun < std::min(ended + kMostUnderWay, steps)) {
      if (begun == planned) {
        plan_step(sequences);
        ++planned;
      }
      if (!pipeline.may_begin(batch())) break;
      pipeline.begin(batch());
      ++begun;
    }
    if (begun > ended) {
      TESSERA_TRY(pipeline.end());
    } else {
      TESSERA_TRY(pipeline.forward(batch()));
      ++begun;
    }
  }
  return {};
}

// The next row of each sequence, in batch().
void BenchRun::plan_step(std::vector<Sequence>& sequences) {
  row_tokens_.clear();
  rows_.clear();
  logit_rows_.clear();
  for (Sequence& sequence : sequences) {
    const int row = static_cast<int>(row_tokens_.size());
    sequence.state.trim(sequence.position);
    sequence.state.extend(1);
    rows_.push_back({.first_row = row,
                     .n_rows = 1,
                     .first_position = sequence.position++,
                     .slot = sequence.state.slot(),
                     .pages = sequence.state.page_tables()});
    row_tokens_.push_back(random_token());
    logit_rows_.push_back(row);
  }
}

// As a server does: tokens are chosen where the head is.
BatchView BenchRun::batch() {
  greedy_.resize(logit_rows_.size());
  return {.tokens = row_tokens_,
          .sequences = rows_,
          .logit_rows = logit_rows_,
          .choices = {.rows = greedy_}};
}

Result<double> BenchRun::time_prompt(const BenchCase& test) {
  TESSERA_ASSIGN(std::vector<Sequence> sequences, start(test));
  const Clock::time_point begin = Clock::now();
  for (Sequence& sequence : sequences) TESSERA_TRY(feed_prompt(sequence, test.tokens, true));
  TESSERA_TRY(loaded_.pipeline->finish());
  return elapsed(begin);
}

Result<double> BenchRun::time_generation(const BenchCase& test) {
  TESSERA_ASSIGN(std::vector<Sequence> sequences, start(test));
  const Clock::time_point begin = Clock::now();
  TESSERA_TRY(decode(sequences, test.tokens));
  return elapsed(begin);
}

}  // namespace tessera::cli
