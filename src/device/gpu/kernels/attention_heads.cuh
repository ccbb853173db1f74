// Attention of a row that sees no other row of the step: the block that attends norms and turns its
// query heads by itself, and puts the row's key and value into their page, as place_rows() does.
#pragma once

#include "device/gpu/kernels/attention_head.cuh"

namespace tessera::gpu {

inline constexpr int kSpanThreads = 256;
inline constexpr int kSpanWarps = kSpanThreads / kWarp;
inline constexpr int kMaxHeads = 16;     // query heads of a KV head
inline constexpr int kMostPlaced = 256;  // columns of a head, whose room is shared memory's

// What a block that places loads ahead of the wait: a lane's part of the norms' weights and turns.
template <int kDim>
struct PlaceConstants {
  using Head = HeadConstants<kDim / kWarp>;
  Head query, key;
  __device__ __forceinline__ PlaceConstants(const AttentionArgs& args, int row, int lane) {
    const int half = args.n_rot / 2;
    const float *cos = args.cos + row * half, *sin = args.sin + row * half;
    query = load_constants<kDim / kWarp>(args.q_norm, kDim, cos, sin, half, lane);
    key = load_constants<kDim / kWarp>(args.k_norm, kDim, cos, sin, half, lane);
  }
};

// A warp a query head, to `values`, in shared memory, scaled; then where `page` is not null the
// row's key and value, a warp each, to number `token` of it; they also stay in `values`, behind the
// query heads.
template <int kDim>
__device__ __forceinline__ void place_heads(const AttentionArgs& args,
                                            const PlaceConstants<kDim>& constants, int row,
                                            int kv_head, int heads, std::byte* page, int token,
                                            float (*values)[kDim]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const KvHead at = kv_head_at(args.kv, kv_head);
  const auto put_page = [&](std::int64_t part, const float* from) {
    auto* to = reinterpret_cast<__half*>(page + part) + token * kDim;
    for (int d = lane; d < kDim; d += kWarp) to[d] = page_half(from[d]);
  };
  const float* key = args.k + row * args.k_stride + kv_head * kDim;
  const float* value = args.v == nullptr ? key : args.v + row * args.v_stride + kv_head * kDim;
  // All that a warp has is asked for at once: query heads, then the key, then the value.
  constexpr int kRounds = (kMaxHeads + 2 + kSpanWarps - 1) / kSpanWarps;
  const int n = heads + (page == nullptr ? 0 : 2);
  float x[kRounds][kDim / kWarp];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int head = warp + i * kSpanWarps;
    const float* query =
        args.q + row * args.q_stride + (kv_head * heads + head) * args.q_head_stride;
    if (head < n)
      load_head(head < heads ? query : head == heads ? key : value, kDim, lane, x[i]);
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int head = warp + i * kSpanWarps;
    if (head >= n) break;
    float* own = values[head];
    const bool is_query = head < heads, is_value = head > heads;
    const auto early = chosen(is_query, constants.query, constants.key);
    const bool norm =
        is_query ? args.q_norm != nullptr : !is_value && args.k_norm != nullptr;
    norm_and_turn(args, row, x[i], early, norm, !is_value, kDim, own);
    if (is_query)
      for (int d = lane; d < kDim; d += kWarp) own[d] *= args.scale;
    else
      put_page(is_value ? at.v : at.k, own);
  }
}

}  // namespace tessera::gpu
