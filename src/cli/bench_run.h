// BenchRun: timed forward passes of a loaded model on made-up prompts.
//
//   BenchRun run(loaded, model.spec());
//   TESSERA_ASSIGN(double seconds, run.time_prompt({.depth = 4096, .tokens = 512}));
#pragma once

#include <random>
#include <vector>

#include "cli/loading.h"

namespace tessera::cli {

struct BenchCase {
  int depth = 0;   // tokens in the context of every sequence before
  int tokens = 0;  // of every sequence
  int batch = 1;   // sequences
};

class BenchRun {
 public:
  BenchRun(LoadedModel& loaded, int vocabulary);

  // Seconds for the prompt alone (the logits of its last token included), after filling to depth.
  Result<double> time_prompt(const BenchCase& test);
  // Seconds for `tokens` steps of one token of every sequence. As in a server the first is given,
  // each other one is what the step before chose, the likeliest, and a step is begun before that is
  // read where the pipeline may.
  Result<double> time_generation(const BenchCase& test);

 private:
  struct Sequence {
    SequenceState state;
    int position = 0;   // rows computed or begun
    TokenId token = 0;  // the next one, where it is known
  };
  Result<std::vector<Sequence>> start(const BenchCase& test);
  Status feed_prompt(Sequence& sequence, int tokens, bool last_logits);
  Status decode(std::vector<Sequence>& sequences, int steps);
  bool begin_step(std::vector<Sequence>& sequences, bool token_known);
  static void move_on(std::vector<Sequence>& sequences);
  BatchView batch();
  TokenId random_token() { return tokens_(random_); }

  LoadedModel& loaded_;
  std::mt19937 random_{20240229};  // the same tokens in every run
  std::uniform_int_distribution<TokenId> tokens_;
  std::vector<TokenId> row_tokens_;
  std::vector<SequenceRows> rows_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<TokenChoice> greedy_;  // one for each of them
};

}  // namespace tessera::cli
