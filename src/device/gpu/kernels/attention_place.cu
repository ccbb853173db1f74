// Head norms, rotation, and the step's keys and values into their pages. One warp a head of a row.
// Floor: the launch; a decode row is some 40 KB. Of a prompt the bytes: 31 KB a row of 16 + 2 heads
// of 256 (4,096 rows: 127 MB, 41 us at 3,100 GB/s).
#include "device/gpu/kernels/attention_head.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 512;

constexpr int kEach = kMaxHeadDim / kWarp;
using Early = HeadConstants<kEach>;

__device__ void store_head(KvFormat format, const float* values, int dims, int token,
                           std::byte* head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t at = static_cast<std::int64_t>(token) * dims;
  for (int d = lane; d < dims; d += kWarp) {
    const float x = values[d];
    if (format == KvFormat::f32) {
      reinterpret_cast<float*>(head)[at + d] = x;
    } else if (format == KvFormat::f16) {
      reinterpret_cast<__half*>(head)[at + d] = page_half(x);
    } else {  // head dimensions are multiples of 32: a warp's step is one group
      const __half scale = __float2half_rn(warp_max(fabsf(x)) / 127.0f);
      const float stored = __half2float(scale);
      const float level = stored > 0 ? rintf(x / stored) : 0.0f;
      reinterpret_cast<signed char*>(head)[at + d] =
          static_cast<signed char>(fminf(fmaxf(level, -127.0f), 127.0f));
      if (lane == 0)
        reinterpret_cast<__half*>(head + static_cast<std::int64_t>(dims) *
                                             kPageTokens)[token * (dims / 32) + d / 32] = scale;
    }
  }
}

// A head's query, scaled, as floats or as halves.
__device__ __forceinline__ void store_query(const AttentionScratch& scratch, const float* values,
                                            float scale, std::int64_t head, int dims) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (scratch.half_q == nullptr) {
    for (int d = lane; d < dims; d += kWarp) scratch.q[head * dims + d] = values[d] * scale;
    return;
  }
  for (int d = 2 * lane; d < dims; d += 2 * kWarp)
    *reinterpret_cast<__half2*>(scratch.half_q + head * dims + d) =
        __floats2half2_rn(values[d] * scale, values[d + 1] * scale);
}

__global__ void __launch_bounds__(kWarps* kWarp)
    place_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args, AttentionScratch scratch) {
  __shared__ float values[kWarps][kMaxHeadDim];
  const int row = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int at = static_cast<int>(blockIdx.y) * kWarps + warp;
  const KvGeometry& kv = args.kv;
  float* own = values[warp];
  const bool is_query = at < args.n_head;
  const bool is_key = !is_query && at - args.n_head < kv.kv_heads;
  const float* weight = is_query ? args.q_norm : is_key ? args.k_norm : nullptr;
  const bool turns = is_query || is_key;
  const int half = turns ? args.n_rot / 2 : 0;
  const Early early =
      load_constants<kEach>(weight, turns ? kv.head_dim_k : kv.head_dim_v, args.cos + row * half,
                            args.sin + row * half, half, static_cast<int>(threadIdx.x) % kWarp);
  const int head = is_query ? at : (at - args.n_head) % kv.kv_heads;
  int position = 0;
  std::byte* page = nullptr;
  if (!is_query && args.k != nullptr && at < args.n_head + 2 * kv.kv_heads) {
    position = args.step.position[row];
    const std::int64_t id =
        args.page_table[args.step.sequence[row] * args.table_stride + position / kPageTokens];
    page = args.pool + id * args.page_stride + args.layer_offset;
  }
  chain_wait();
  chain_trigger();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float x[kEach];
  if (is_query) {
    load_head(args.q + row * args.q_stride + at * args.q_head_stride, kv.head_dim_k, lane, x);
    norm_and_turn(args, row, x, early, args.q_norm != nullptr, true, kv.head_dim_k, own);
    store_query(scratch, own, args.scale, std::int64_t{row} * args.n_head + at, kv.head_dim_k);
    return;
  }
  if (page == nullptr) return;
  const KvHead place = kv_head_at(kv, head);
  const float* key = args.k + row * args.k_stride + head * kv.head_dim_k;
  if (is_key) {
    load_head(key, kv.head_dim_k, lane, x);
    norm_and_turn(args, row, x, early, args.k_norm != nullptr, true, kv.head_dim_k, own);
    store_head(kv.format, own, kv.head_dim_k, position % kPageTokens, page + place.k);
  } else {
    const float* value =
        args.v == nullptr ? key : args.v + row * args.v_stride + head * kv.head_dim_v;
    load_head(value, kv.head_dim_v, lane, x);
    norm_and_turn(args, row, x, early, args.v_norm, false, kv.head_dim_v, own);
    store_head(kv.format, own, kv.head_dim_v, position % kPageTokens, page + place.v);
  }
}

}  // namespace

GpuError place_rows(const Launch& launch, const AttentionArgs& args,
                    const AttentionScratch& scratch) {
  const int heads = args.n_head + (args.k == nullptr ? 0 : 2 * args.kv.kv_heads);
  const dim3 grid(static_cast<unsigned>(args.step.rows),
                  static_cast<unsigned>((heads + kWarps - 1) / kWarps));
  return launch_kernel(launch, place_kernel, grid, dim3(kWarps * kWarp), 0, args, scratch);
}

}  // namespace tessera::gpu
