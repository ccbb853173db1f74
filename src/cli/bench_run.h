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
  // Seconds for `tokens` steps of one token of every sequence. They are made up, so that each meets
  // other experts; that each is chosen and, where the pipeline may, a step begun before that is
  // read, is as in a server.
  Result<double> time_generation(const BenchCase& test);

 private:
  struct Sequence {
    SequenceState state;
    int position = 0;  // rows planned
  };
  Result<std::vector<Sequence>> start(const BenchCase& test);
  Status feed_prompt(Sequence& sequence, int tokens, bool last_logits);
  Status decode(std::vector<Sequence>& sequences, int steps);
  void plan_step(std::vector<Sequence>& sequences);
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
