// ChoiceOutput: the visible output of one choice, with its tokens aligned to the text.
//
// The engine reports tokens as they are sampled but holds text back (parts of characters, possible
// stop strings). A slice carries the tokens that begin in the text shown so far, so that the
// log-probabilities of a response describe its text; tokens that lie wholly in a matched stop
// string are dropped.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace tessera::server {

struct OutputSlice {
  std::string text;
  std::vector<EmittedToken> tokens;  // empty unless they are kept
  std::optional<FinishReason> finish;
};

class ChoiceOutput {
 public:
  explicit ChoiceOutput(bool keep_tokens) : keep_tokens_(keep_tokens) {}

  OutputSlice feed(GenerationEvent event);
  int generated() const { return generated_; }  // tokens seen so far
  const std::optional<Finish>& finish() const { return finish_; }

 private:
  bool keep_tokens_ = false;
  int generated_ = 0;
  std::size_t shown_bytes_ = 0;   // of text
  std::size_t queued_begin_ = 0;  // byte at which the first queued token begins
  std::deque<EmittedToken> queued_;
  std::optional<Finish> finish_;
};

}  // namespace tessera::server
