// The part of attention that is compiled per instruction set; attention.cc drives it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu/attention.h"

namespace tessera::cpu {

// Pairs of (row, query head) that pass over a page together, so that it is read from memory once.
inline constexpr int kBlockPairs = 48;
// The most pairs that any instruction set holds in registers at once.
inline constexpr int kMaxTilePairs = 8;

// Pairs [first_pair, first_pair + pairs) of a task over the pages [first_page, end_page), all
// within one span. Pair i is row i / heads, head i % heads. Writes the partial result: the largest
// score `top`, the sum of weights `sum` (both [pairs]) and the weighted values [pairs][head_dim_v].
struct AttentionBlock {
  const AttentionTask* task = nullptr;
  int first_pair = 0;
  int pairs = 0;
  int first_page = 0;
  int end_page = 0;
  std::int64_t k_offset = 0;  // of the KV head's parts within a page
  std::int64_t v_offset = 0;
  std::int64_t k_bytes = 0;
  std::int64_t v_bytes = 0;
  float* queries = nullptr;  // scratch: [kBlockPairs][head_dim_k rounded up to 64]
  float* weights = nullptr;  // scratch: [kMaxTilePairs][64]
  float* top = nullptr;
  float* sum = nullptr;
  float* values = nullptr;
};

// Running total of one pair; `values` is its row of the output.
struct AttentionTotal {
  float top;
  float sum;
};

struct AttentionKernels {
  void (*block_f16)(const AttentionBlock& block);
  void (*block_f32)(const AttentionBlock& block);
  void (*block_q8_0)(const AttentionBlock& block);
  // total <- total + partial, of one pair.
  void (*merge)(AttentionTotal* total, float* total_values, float top, float sum,
                const float* values, int head_dim_v);
  // values / sum, in place.
  void (*finish)(float sum, float* values, int head_dim_v);
};

}  // namespace tessera::cpu
