// StepBatch: the rows of one step while they are collected, in buffers that keep their memory.
#pragma once

#include <cstdint>
#include <vector>

#include "device/batch.h"

namespace tessera {

struct StepBatch {
  std::vector<TokenId> tokens;
  std::vector<SequenceRows> sequences;
  std::vector<std::int32_t> logit_rows;
  std::vector<TokenChoice> choices;  // one for each of them
  std::vector<LogitChange> logit_changes;

  struct Size {
    int rows = 0;
    int sequences = 0;
    int logit_rows = 0;
  };
  void reserve(const Size& most) {
    tokens.reserve(static_cast<std::size_t>(most.rows));
    sequences.reserve(static_cast<std::size_t>(most.sequences));
    logit_rows.reserve(static_cast<std::size_t>(most.logit_rows));
    choices.reserve(static_cast<std::size_t>(most.logit_rows));
  }
  void clear() {
    tokens.clear();
    sequences.clear();
    logit_rows.clear();
    choices.clear();
    logit_changes.clear();
  }
  BatchView view() const { return {tokens, sequences, logit_rows, {choices, logit_changes}}; }
};

}  // namespace tessera
