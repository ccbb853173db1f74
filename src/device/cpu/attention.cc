#include "device/cpu/attention.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/checked.h"
#include "device/cpu/attention_kernels.h"

namespace tessera::cpu {

extern const AttentionKernels kAttentionKernels_portable;
extern const AttentionKernels kAttentionKernels_avx2;
extern const AttentionKernels kAttentionKernels_avx512;

const AttentionKernels& attention_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return kAttentionKernels_avx512;
    case Isa::avx2:
      return kAttentionKernels_avx2;
    case Isa::portable:
      break;
  }
  return kAttentionKernels_portable;
}

namespace {

constexpr AttentionTotal kNothing = {-std::numeric_limits<float>::infinity(), 0.0f};

// Pages that the rows [first_row, last_row] see.
struct PageRange {
  int first;
  int end;
};
PageRange pages_seen(const AttentionTask& task, int first_row, int last_row) {
  int oldest = 0;
  if (task.window > 0) oldest = std::max(0, task.first_position + first_row - task.window + 1);
  return {oldest / kPageTokens, (task.first_position + last_row) / kPageTokens + 1};
}

PageRange pages_of_span(const AttentionTask& task, int span) {
  const int first = (pages_seen(task, 0, 0).first / kSpanPages + span) * kSpanPages;
  return {first, first + kSpanPages};
}

float* output_of(const AttentionTask& task, int pair) {
  return task.out + pair / task.heads * task.out_row_stride +
         pair % task.heads * task.out_head_stride;
}

// A block's scratch, all in floats.
struct BlockScratch {
  std::size_t queries, weights, top, sum, values, total;
};
BlockScratch scratch_layout(const AttentionTask& task) {
  constexpr std::size_t kBlock = kBlockPairs;
  BlockScratch at{};
  at.weights = kBlock * static_cast<std::size_t>(round_up(task.geometry.head_dim_k, 64));
  at.top = at.weights + kMaxTilePairs * kPageTokens;
  at.sum = at.top + kBlock;
  at.values = at.sum + kBlock;
  at.total = at.values + kBlock * static_cast<std::size_t>(task.geometry.head_dim_v);
  return at;
}

AttentionBlock make_block(const AttentionTask& task, int first_pair, int pairs,
                          std::byte* scratch) {
  const BlockScratch at = scratch_layout(task);
  float* floats = reinterpret_cast<float*>(scratch);
  AttentionBlock block;
  block.task = &task;
  block.first_pair = first_pair;
  block.pairs = pairs;
  block.k_offset = static_cast<std::int64_t>(kv_k_offset(task.geometry, task.kv_head));
  block.v_offset = static_cast<std::int64_t>(kv_v_offset(task.geometry, task.kv_head));
  block.k_bytes = static_cast<std::int64_t>(kv_head_k_bytes(task.geometry));
  block.v_bytes = static_cast<std::int64_t>(kv_head_v_bytes(task.geometry));
  block.queries = floats + at.queries;
  block.weights = floats + at.weights;
  block.top = floats + at.top;
  block.sum = floats + at.sum;
  block.values = floats + at.values;
  return block;
}

// Runs the block over the part of `span` that it sees.
void run_block(const AttentionKernels& kernels, AttentionBlock* block, PageRange span) {
  const AttentionTask& task = *block->task;
  const int first_row = block->first_pair / task.heads;
  const int last_row = (block->first_pair + block->pairs - 1) / task.heads;
  const PageRange seen = pages_seen(task, first_row, last_row);
  block->first_page = std::max(span.first, seen.first);
  block->end_page = std::min(span.end, seen.end);
  for (int page = block->first_page; page < block->end_page; ++page) {
    CHECK(task.pages[page] >= 0, "KV page {} of a visible range was given back", page);
  }
  switch (task.geometry.type) {
    case KvType::f16:
      return kernels.block_f16(*block);
    case KvType::f32:
      return kernels.block_f32(*block);
    case KvType::q8_0:
      return kernels.block_q8_0(*block);
  }
}

template <typename Fn>
void for_each_block(const AttentionTask& task, Fn fn) {
  const int pairs = task.rows * task.heads;
  for (int first = 0; first < pairs; first += kBlockPairs) {
    fn(first, std::min(kBlockPairs, pairs - first));
  }
}

}  // namespace

std::size_t attention_scratch_bytes(const AttentionTask& task) {
  return round_up<std::size_t>(scratch_layout(task).total * sizeof(float), 64);
}

int attention_spans(const AttentionTask& task) {
  const PageRange seen = pages_seen(task, 0, task.rows - 1);
  return (seen.end - 1) / kSpanPages - seen.first / kSpanPages + 1;
}

std::size_t attention_partial_floats(const AttentionTask& task) {
  return static_cast<std::size_t>(task.rows) * static_cast<std::size_t>(task.heads) *
         static_cast<std::size_t>(task.geometry.head_dim_v + 2);
}

void attend(const AttentionKernels& kernels, const AttentionTask& task, std::byte* scratch) {
  const int width = task.geometry.head_dim_v;
  for_each_block(task, [&](int first, int pairs) {
    AttentionTotal totals[kBlockPairs];
    std::fill_n(totals, pairs, kNothing);
    for (int i = 0; i < pairs; ++i) std::fill_n(output_of(task, first + i), width, 0.0f);
    AttentionBlock block = make_block(task, first, pairs, scratch);
    const PageRange seen = pages_seen(task, first / task.heads, (first + pairs - 1) / task.heads);
    for (int page = seen.first / kSpanPages * kSpanPages; page < seen.end; page += kSpanPages) {
      run_block(kernels, &block, {page, page + kSpanPages});
      for (int i = 0; i < pairs; ++i) {
        kernels.merge(&totals[i], output_of(task, first + i), block.top[i], block.sum[i],
                      block.values + i * width, width);
      }
    }
    for (int i = 0; i < pairs; ++i) {
      kernels.finish(totals[i].sum, output_of(task, first + i), width);
    }
  });
}

void attend_span(const AttentionKernels& kernels, const AttentionTask& task, int span,
                 std::byte* scratch, float* partial) {
  const int all = task.rows * task.heads;
  for_each_block(task, [&](int first, int pairs) {
    AttentionBlock block = make_block(task, first, pairs, scratch);
    block.top = partial + first;
    block.sum = partial + all + first;
    block.values = partial + 2 * static_cast<std::int64_t>(all) +
                   static_cast<std::int64_t>(first) * task.geometry.head_dim_v;
    run_block(kernels, &block, pages_of_span(task, span));
  });
}

void combine_spans(const AttentionKernels& kernels, const AttentionTask& task,
                   const float* partials) {
  const int all = task.rows * task.heads;
  const int width = task.geometry.head_dim_v;
  const int spans = attention_spans(task);
  for (int pair = 0; pair < all; ++pair) {
    AttentionTotal total = kNothing;
    float* out = output_of(task, pair);
    std::fill_n(out, width, 0.0f);
    for (int span = 0; span < spans; ++span) {
      const float* partial =
          partials + static_cast<std::size_t>(span) * attention_partial_floats(task);
      kernels.merge(
          &total, out, partial[pair], partial[all + pair],
          partial + 2 * static_cast<std::int64_t>(all) + static_cast<std::int64_t>(pair) * width,
          width);
    }
    kernels.finish(total.sum, out, width);
  }
}

}  // namespace tessera::cpu
