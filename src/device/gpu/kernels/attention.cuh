// What the attention kernels share: where keys and values lie, which of them a row sees, and the
// partial results of a context cut into spans.
#pragma once

#include "device/gpu/kernels/input.cuh"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {

struct AttentionScratch {
  float* q = nullptr;         // [rows][n_head][head_dim_k]: normed, rotated, scaled
  float* partials = nullptr;  // [rows][n_head][spans][head_dim_v + 2]: sums, then top and weight
  int spans = 0;
};
AttentionScratch attention_scratch(const AttentionArgs& args, void* workspace);

struct KvHead {
  std::int64_t k, v;  // offsets within a page of the layer
};
__host__ __device__ inline std::int64_t kv_part_bytes(KvFormat format, int head_dim) {
  const std::int64_t n = static_cast<std::int64_t>(head_dim) * kPageTokens;
  return format == KvFormat::f32 ? n * 4 : format == KvFormat::f16 ? n * 2 : n + n / 32 * 2;
}
__host__ __device__ inline KvHead kv_head_at(const KvGeometry& kv, int head) {
  const std::int64_t k = kv_part_bytes(kv.format, kv.head_dim_k);
  const std::int64_t v = kv_part_bytes(kv.format, kv.head_dim_v);
  return {k * head, k * kv.kv_heads + v * head};
}

// Tokens [first, end) that the row at `position` sees.
__device__ __forceinline__ int first_seen(const AttentionArgs& args, int position) {
  return args.window > 0 ? max(0, position - args.window + 1) : 0;
}

__device__ __forceinline__ const std::byte* page_of(const AttentionArgs& args, int sequence,
                                                    int page) {
  const std::int64_t id = args.page_table[sequence * args.table_stride + page];
  return args.pool + id * args.page_stride + args.layer_offset;
}

// The gate's factor of element d of a head.
__device__ __forceinline__ float gate_factor(const AttentionArgs& args, int row, int head, int d) {
  switch (args.gate) {
    case OutputGate::none:
      break;
    case OutputGate::sigmoid_in_query:
      return sigmoid(
          args.q[row * args.q_stride + head * args.q_head_stride + args.kv.head_dim_k + d]);
    case OutputGate::softplus_per_head:
      return softplus(args.gate_logits[row * args.gate_stride + head]);
    case OutputGate::softplus_per_element:
      return softplus(args.gate_logits[row * args.gate_stride + head * args.kv.head_dim_v + d]);
  }
  return 1.0f;
}

// Each enqueues one kernel.
GpuError place_rows(const Launch& launch, const AttentionArgs& args,
                    const AttentionScratch& scratch);
GpuError attend_plain(const Launch& launch, const AttentionArgs& args,
                      const AttentionScratch& scratch);
// Few rows over f16 pages.
bool has_decode_attention(const AttentionArgs& args);
GpuError attend_decode(const Launch& launch, const AttentionArgs& args,
                       const AttentionScratch& scratch);
// Many rows over f16 pages; writes args.out, gated.
bool has_prefill_attention(const AttentionArgs& args);
GpuError attend_prefill(const Launch& launch, const AttentionArgs& args,
                        const AttentionScratch& scratch);
GpuError combine_spans(const Launch& launch, const AttentionArgs& args,
                       const AttentionScratch& scratch);

}  // namespace tessera::gpu
