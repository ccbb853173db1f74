// The spans of a row's context added up, first span first: by a kernel of its own
// (combine_spans()), or of short contexts by the blocks that attended (attention_short.cu). The
// sums have the same order, and so the same bits.
#pragma once

#include "device/gpu/kernels/attention.cuh"
#include "device/gpu/kernels/super_input.cuh"

namespace tessera::gpu {

// Of one column of a head: a span's sum, not yet divided, and its weights' top and sum.
struct SpanPart {
  float top, weight, value;
};

// Of kFewSpans at most each thread makes all factors for itself: all loads at once, and no barrier.
// part(i) is span i's; sum and value come in as zero.
template <typename Part>
__device__ __forceinline__ void combine_few(int n, Part part, float& sum, float& value) {
  SpanPart parts[kFewSpans];
#pragma unroll
  for (int i = 0; i < kFewSpans; ++i) {
    if (i >= n) break;
    parts[i] = part(i);
  }
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kFewSpans; ++i) top = i < n ? fmaxf(top, parts[i].top) : top;
#pragma unroll
  for (int i = 0; i < kFewSpans; ++i) {
    if (i >= n) break;
    const float factor = expf(parts[i].top - top);
    sum = fmaf(parts[i].weight, factor, sum);
    value = fmaf(parts[i].value, factor, value);
  }
}

// Column `column` of the row's output, a column a lane, and where `rounded` is not null a group of
// 32 of them rounded: heads are whole groups there, and all of the warp is here.
__device__ __forceinline__ void put_output(const AttentionArgs& args, std::byte* rounded, int row,
                                           int column, float value) {
  args.out[row * args.out_stride + column] = value;
  if (rounded == nullptr) return;
  round_lanes(value, static_cast<int>(threadIdx.x) % kWarp, column % kSuperCols / kWarp,
              rounded_row(rounded, args.n_head * args.kv.head_dim_v, row) +
                  column / kSuperCols * kSuperBytes);
}

}  // namespace tessera::gpu
