// Attention of query rows over a paged KV cache (kv_layout.h): online softmax in f32, page by page.
//
// A task is one KV head of one sequence: `rows` consecutive positions times the `heads` query heads
// that share the KV head. The keys and values of the rows themselves are already in the pages. Key
// p is visible to the row at position t iff p <= t and, with a window, p > t - window.
//
// The result of a row is the same bit by bit however rows are cut into tasks, and whether a task
// runs in one call or as spans on many threads: pages stand at absolute positions, sums run over
// them in a fixed order, and every kSpanPages pages a partial result is closed and merged into the
// row's total, first span first. A page that a row does not see changes nothing of that row.
//
//   attend(kernels, task, scratch);                                   // whole, one thread
//
//   for (int s = 0; s < attention_spans(task); ++s)                   // any thread, any order
//     attend_span(kernels, task, s, scratch_of_thread, partials + s *
//     attention_partial_floats(task));
//   combine_spans(kernels, task, partials);                           // or a range of its rows
//
// Scratch is attention_scratch_bytes(task) bytes, 64-byte aligned, one per thread, contents free.
// Head dimensions are multiples of 16 (validate() of kv_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu/isa.h"
#include "device/cpu/kv_layout.h"

namespace tessera::cpu {

inline constexpr int kSpanPages = 16;  // pages in one split of a long context

struct AttentionTask {
  KvGeometry geometry;
  const std::byte* pool = nullptr;  // page p of this layer: pool + p * page_stride + layer_offset
  std::int64_t page_stride = 0;
  std::int64_t layer_offset = 0;
  const std::int32_t* pages =
      nullptr;  // page table, index = position / 64; -1 only where invisible
  int kv_head = 0;
  int heads = 0;  // query heads that share kv_head
  int rows = 0;
  int first_position = 0;         // of row 0; row i is at first_position + i
  const float* q = nullptr;       // row 0, first head of the group; head_dim_k values each
  std::int64_t q_row_stride = 0;  // in floats
  std::int64_t q_head_stride = 0;
  float* out = nullptr;  // head_dim_v values each
  std::int64_t out_row_stride = 0;
  std::int64_t out_head_stride = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // scores become softcap * tanh(score / softcap) when > 0
  int window = 0;        // 0: everything before a row is visible
};

struct AttentionKernels;  // attention_kernels.h
const AttentionKernels& attention_kernels(Isa isa);

std::size_t attention_scratch_bytes(const AttentionTask& task);
void attend(const AttentionKernels& kernels, const AttentionTask& task, std::byte* scratch);

// Number of spans that any row of the task sees.
int attention_spans(const AttentionTask& task);
// Floats of one span's partial result.
std::size_t attention_partial_floats(const AttentionTask& task);
void attend_span(const AttentionKernels& kernels, const AttentionTask& task, int span,
                 std::byte* scratch, float* partial);
// Merges the partial results of all spans, [attention_spans][attention_partial_floats], into out.
void combine_spans(const AttentionKernels& kernels, const AttentionTask& task,
                   const float* partials);

}  // namespace tessera::cpu
