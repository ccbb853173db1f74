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

  void reserve(int rows, int max_sequences, int max_logit_rows) {
    tokens.reserve(static_cast<std::size_t>(rows));
    sequences.reserve(static_cast<std::size_t>(max_sequences));
    logit_rows.reserve(static_cast<std::size_t>(max_logit_rows));
  }
  void clear() {
    tokens.clear();
    sequences.clear();
    logit_rows.clear();
  }
  BatchView view() const { return {tokens, sequences, logit_rows}; }
};

}  // namespace tessera
