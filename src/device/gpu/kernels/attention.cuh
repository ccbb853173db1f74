// What the attention kernels share: where keys and values lie, which of them a row sees, and the
// partial results of a context cut into spans.
#pragma once

#include "device/gpu/kernels/input.cuh"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {

struct AttentionScratch {
  // [rows][n_head][head_dim_k]: normed, rotated, scaled. Where has_prefill_attention() they are
  // halves, in the same place.
  float* q = nullptr;
  __half* half_q = nullptr;
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

__device__ __forceinline__ const std::byte* page_at(const AttentionArgs& args, std::int32_t id) {
  return args.pool + id * args.page_stride + args.layer_offset;
}
__device__ __forceinline__ const std::byte* page_of(const AttentionArgs& args, int sequence,
                                                    int page) {
  return page_at(args, args.page_table[sequence * args.table_stride + page]);
}

// Gates that each element has for itself: whether there are any, those of a head, and the factor
// that one makes.
__device__ __forceinline__ bool has_element_gates(OutputGate gate) {
  return gate == OutputGate::sigmoid_in_query || gate == OutputGate::softplus_per_element;
}
__device__ __forceinline__ const float* element_gates(const AttentionArgs& args, int row,
                                                      int head) {
  return args.gate == OutputGate::sigmoid_in_query
             ? args.q + row * args.q_stride + head * args.q_head_stride + args.kv.head_dim_k
             : args.gate_logits + row * args.gate_stride + head * args.kv.head_dim_v;
}
__device__ __forceinline__ float opened(OutputGate gate, float x) {
  return gate == OutputGate::sigmoid_in_query ? sigmoid(x) : softplus(x);
}
// The gate's factor of element d of a head.
__device__ __forceinline__ float gate_factor(const AttentionArgs& args, int row, int head, int d) {
  if (has_element_gates(args.gate)) return opened(args.gate, element_gates(args, row, head)[d]);
  if (args.gate == OutputGate::softplus_per_head)
    return softplus(args.gate_logits[row * args.gate_stride + head]);
  return 1.0f;
}

// Each enqueues one kernel.
GpuError place_rows(const Launch& launch, const AttentionArgs& args,
                    const AttentionScratch& scratch);
GpuError attend_plain(const Launch& launch, const AttentionArgs& args,
                      const AttentionScratch& scratch);
// Few rows over f16 pages. attention_places(): it norms, turns and stores what it reads by itself,
// in place of place_rows().
bool has_decode_attention(const AttentionArgs& args);
bool attention_places(const AttentionArgs& args);
GpuError attend_decode(const Launch& launch, const AttentionArgs& args,
                       const AttentionScratch& scratch);
// Where contexts are short, rows few and the device has clusters: that, and what combine_spans()
// does.
bool attends_short(const Launch& launch, const AttentionArgs& args);
GpuError attend_short(const Launch& launch, const AttentionArgs& args, std::byte* rounded);
// Many rows over f16 pages; writes args.out, gated.
bool has_prefill_attention(const AttentionArgs& args);
GpuError attend_prefill(const Launch& launch, const AttentionArgs& args,
                        const AttentionScratch& scratch);
// To args.out, gated; to `rounded`, if it is not null, as round_rows() leaves them.
GpuError combine_spans(const Launch& launch, const AttentionArgs& args,
                       const AttentionScratch& scratch, std::byte* rounded);

}  // namespace tessera::gpu
