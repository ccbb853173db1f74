// The rows of one forward step, as a device sees them.
//
// A row is one token of one sequence. The rows of a sequence stand together and have consecutive
// positions; prefill chunks and decode rows of many sequences share a batch. A row's result never
// depends on the other rows.
#pragma once

#include <cstdint>
#include <span>

#include "device/token_choice.h"
#include "model/spec.h"

namespace tessera {

inline constexpr int kPageTokens = 64;  // tokens in one KV page

// Batches that may be under way, each begun before the tokens of the one ahead are read
// (Device::may_begin): what is told apart by their turn takes odd and even ones.
inline constexpr int kMostUnderWay = 2;

// In the place of a token: the one that choice i of the batch before chose, which only the device
// knows yet; where it chose none, any. Only in batches that may_begin() (device.h).
// Its own inverse.
constexpr TokenId token_of_choice(int i) {
  return -1 - i;
}

// Pages that one sequence can hold at a time in a group with a window, when at most `chunk` rows
// are added between two trims: the window - 1 keys before a chunk and the chunk, starting anywhere
// in a page.
constexpr int window_pages(int window, int chunk) {
  const std::int64_t span = std::int64_t{window} - 1 + chunk;
  return static_cast<int>((span - 1 + kPageTokens - 1) / kPageTokens + 1);
}

struct SequenceRows {
  int first_row = 0;
  int n_rows = 0;
  int first_position = 0;
  int slot = 0;  // recurrent-state slot
  // One page table per KV group (kv_groups order): entry p holds the page of positions
  // [64p, 64p + 64), or -1 where it lies before the window and was given back.
  std::span<const std::span<const std::int32_t>> pages;
};

struct BatchView {
  std::span<const TokenId> tokens;  // one per row, or token_of_choice()
  std::span<const SequenceRows> sequences;
  std::span<const std::int32_t> logit_rows;  // rows whose logits are wanted, rising
  // Empty: the logits themselves are wanted. Else one for each of these rows, and where the batch
  // passes more than a device (pipeline/) the tokens are all that comes of it.
  TokenChoices choices;

  int rows() const { return static_cast<int>(tokens.size()); }
};

}  // namespace tessera
