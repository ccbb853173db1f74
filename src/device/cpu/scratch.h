// Scratch: every buffer that a step of the CPU device writes, carved out of one allocation.
//
// carve_scratch(..., nullptr, scratch) only counts, so the planner and the device agree on the
// bytes:
//
//   Scratch scratch;
//   const std::int64_t bytes = carve_scratch(spec, shard, threads, nullptr, scratch);
//   carve_scratch(spec, shard, threads, buffer.data(), scratch);
//
// Sizes below are in elements; R = max_rows, E = n_embd, P = R * experts used, X = n_expert.
#pragma once

#include <cstddef>
#include <cstdint>

#include <vector>

#include "device/cpu/activations.h"
#include "device/cpu/attention.h"
#include "device/cpu/vector_ops.h"
#include "device/device.h"

namespace tessera::cpu {

struct Scratch {
  // Rows
  float* hidden = nullptr;  // [R][E] the residual stream
  float* normed = nullptr;  // [R][E] input of the block under way
  float* moe_normed =
      nullptr;              // [R][E] input of the experts where it differs from the dense branch's
  float* branch = nullptr;  // [R][E] output of the mixer, then of the dense FFN
  ActivationRecord* normed_records = nullptr;
  ActivationRecord* moe_records = nullptr;

  // The mixer's; widths are the largest of any layer. The FFN's buffers below lie in the same
  // memory.
  float* wide = nullptr;      // [R][q | conv input]
  float* wide_out = nullptr;  // [R][attention output | conv output]
  float* side = nullptr;      // [R][k | z]
  float* side_v = nullptr;    // [R][v | delta output]
  float* gate = nullptr;      // [R][attention gate]
  float* heads = nullptr;     // [4][R][n_value_head]: alpha, beta logits, g, beta
  ActivationRecord* mixed_records = nullptr;

  // Dense FFN; F is the widest
  float* dense_gate = nullptr;  // [R][F]
  float* dense_up = nullptr;    // [R][F]
  ActivationRecord* dense_records = nullptr;

  // Mixture of experts
  float* router_input = nullptr;             // [R][E] where the router reads its own norm
  float* router_logits = nullptr;            // [R][X]
  RoutedPair* pairs = nullptr;               // [P]
  std::int32_t* pair_rows = nullptr;         // [P] row of the i-th pair in expert order
  WeightedRow* pair_terms = nullptr;         // [P] by (row, slot): its output, where computed here
  std::int32_t* expert_ends = nullptr;       // [X + 1]
  std::int32_t* experts_done = nullptr;      // [2][X]
  float* expert_gate = nullptr;              // [P][F]
  float* expert_up = nullptr;                // [P][F]
  ActivationRecord* pair_records = nullptr;  // [P] x F
  float* pair_out = nullptr;                 // [P][E] in expert order
  float* moe_sum = nullptr;                  // [R][E]
  double* sums_away = nullptr;  // [R][E] of the pairs computed elsewhere, where experts are away

  // Head
  float* head_normed = nullptr;  // [max_logit_rows][E]
  ActivationRecord* head_records = nullptr;
  float* logits = nullptr;  // [max_logit_rows][V]

  // Rotary tables: [distinct ropes][R][n_rot / 2] each
  float* rope_cos = nullptr;
  float* rope_sin = nullptr;

  // Per thread
  std::byte* thread_bytes = nullptr;  // [threads][thread_stride]
  std::int64_t thread_stride = 0;
  float* partials = nullptr;  // attention split over spans of the context
  std::int64_t partial_floats = 0;
  std::int64_t partial_count = 0;
};

// Sets the pointers when `base` is not null; returns the bytes either way. base is 64-byte aligned.
std::int64_t carve_scratch(const ModelSpec& spec, const ShardLayout& shard, int threads,
                           std::byte* base, Scratch& out);

// Index of each attention layer's rotary table among the model's distinct ones, -1 for other
// layers.
struct RopeTables {
  std::vector<const RopeSpec*> distinct;
  std::vector<std::int64_t> offsets;  // of each distinct table, in floats per row of the batch
  std::vector<int> of_layer;

  std::int64_t offset(int layer) const {
    return offsets[static_cast<std::size_t>(of_layer[static_cast<std::size_t>(layer)])];
  }
  std::int64_t floats_per_row() const { return offsets.back(); }  // one past the last table
};
RopeTables rope_tables(const ModelSpec& spec);

// Prefill attention runs in tasks of this many rows of one KV head, so that a page read once serves
// about 48 query rows.
constexpr int attention_rows_per_task(int heads) {
  return heads >= 48 ? 1 : 48 / heads;
}
// A task of that size, for sizing scratch.
AttentionTask largest_attention_task(const AttentionSpec& spec, KvType type);

}  // namespace tessera::cpu
