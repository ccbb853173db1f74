// Lengths of the bodies of jobs and results. Counts are at most kMaxWireRows rows, 2^24 columns and
// 2^32 of the rest, so no sum here passes 2^64.
#pragma once

#include <cstdint>

#include "worker/wire.h"

namespace tessera::worker {

inline constexpr std::uint64_t kPairBytes = 8;
inline constexpr std::uint64_t kForwardFixedBytes = 24;
inline constexpr std::uint64_t kForwardSequenceBytes = 16;
inline constexpr std::uint64_t kPageChangeBytes = 16;
inline constexpr std::uint64_t kStateChangeBytes = 16;
inline constexpr std::uint64_t kTokenChoiceBytes = 40;
inline constexpr std::uint64_t kLogitChangeBytes = 16;
inline constexpr std::uint32_t kMostLogitChanges = 4096;  // of a job
inline constexpr int kMostTopTokens = 128;                // beside a row's token
// A result of tokens, a row: the token, and each of the most probable beside it.
inline constexpr std::uint32_t kChosenWords = 4;
inline constexpr std::uint32_t kTopTokenWords = 2;

constexpr std::uint64_t rows_bytes(std::uint32_t rows, std::uint32_t columns, WireType type) {
  return wire_bytes(type, std::uint64_t{rows} * columns);
}

struct ExpertsCounts {
  std::uint32_t rows = 0;
  std::uint32_t pairs = 0;
};

// pairs, then rows
constexpr std::uint64_t experts_body_bytes(const ExpertsCounts& counts, std::uint32_t n_embd,
                                           WireType type) {
  return counts.pairs * kPairBytes + rows_bytes(counts.rows, n_embd, type);
}

constexpr std::uint64_t result_body_bytes(std::uint32_t rows, std::uint32_t columns,
                                          WireType type) {
  return rows_bytes(rows, columns, type);
}

struct ForwardCounts {
  std::uint32_t rows = 0;
  std::uint32_t sequences = 0;
  std::uint32_t page_changes = 0;
  std::uint32_t logit_rows = 0;
  std::uint32_t state_changes = 0;
  std::uint32_t choices = 0;
  std::uint32_t logit_changes = 0;
};

// counts, state changes, tokens, sequences, page changes, logit rows, choices, changes of logits,
// then rows
constexpr std::uint64_t forward_body_bytes(const ForwardCounts& counts, std::uint32_t n_embd,
                                           WireType type) {
  return kForwardFixedBytes + kStateChangeBytes * counts.state_changes +
         4 * std::uint64_t{counts.rows} + kForwardSequenceBytes * counts.sequences +
         kPageChangeBytes * counts.page_changes + 4 * std::uint64_t{counts.logit_rows} +
         kTokenChoiceBytes * counts.choices + kLogitChangeBytes * counts.logit_changes +
         rows_bytes(counts.rows, n_embd, type);
}

}  // namespace tessera::worker
