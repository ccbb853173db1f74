// Head norms, rotation, and the step's keys and values into their pages. One warp a head of a row.
// Floor: the launch; a decode row is some 40 KB.
#include "device/gpu/kernels/attention.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 512;

// values[d] = norm(x)[d], rotated where d < n_rot. All by one warp; ends with the warp in step.
__device__ void norm_and_turn(const AttentionArgs& args, int row, const float* x,
                              const float* weight, bool norm, bool turn, int dims, float* values) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float factor = 1.0f;
  if (norm) {
    float sum = 0;
    for (int d = lane; d < dims; d += kWarp) sum = fmaf(x[d], x[d], sum);
    factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dims) + args.eps);
  }
  for (int d = lane; d < dims; d += kWarp)
    values[d] = norm ? x[d] * factor * (weight == nullptr ? 1.0f : weight[d]) : x[d];
  __syncwarp();
  if (!turn) return;
  const int half = args.n_rot / 2;
  for (int i = lane; i < half; i += kWarp) {
    const float c = args.cos[row * half + i], s = args.sin[row * half + i];
    const float a = values[i], b = values[i + half];
    values[i] = a * c - b * s;
    values[i + half] = b * c + a * s;
  }
  __syncwarp();
}

__device__ void store_head(KvFormat format, const float* values, int dims, int token,
                           std::byte* head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t at = static_cast<std::int64_t>(token) * dims;
  for (int d = lane; d < dims; d += kWarp) {
    const float x = values[d];
    if (format == KvFormat::f32) {
      reinterpret_cast<float*>(head)[at + d] = x;
    } else if (format == KvFormat::f16) {
      // An infinity would make NaN of the zero weight that other rows give it.
      reinterpret_cast<__half*>(head)[at + d] =
          __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
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

__global__ void __launch_bounds__(kWarps* kWarp)
    place_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args, float* q_out) {
  __shared__ float values[kWarps][kMaxHeadDim];
  chain_wait();
  chain_trigger();
  const int row = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int at = static_cast<int>(blockIdx.y) * kWarps + warp;
  const KvGeometry& kv = args.kv;
  float* own = values[warp];
  if (at < args.n_head) {
    const float* x = args.q + row * args.q_stride + at * args.q_head_stride;
    norm_and_turn(args, row, x, args.q_norm, args.q_norm != nullptr, true, kv.head_dim_k, own);
    float* to = q_out + (static_cast<std::int64_t>(row) * args.n_head + at) * kv.head_dim_k;
    for (int d = lane; d < kv.head_dim_k; d += kWarp) to[d] = own[d] * args.scale;
    return;
  }
  if (args.k == nullptr || at >= args.n_head + 2 * kv.kv_heads) return;
  const int head = (at - args.n_head) % kv.kv_heads;
  const bool is_key = at - args.n_head < kv.kv_heads;
  const int position = args.step.position[row], sequence = args.step.sequence[row];
  const std::int64_t id = args.page_table[sequence * args.table_stride + position / kPageTokens];
  std::byte* page = args.pool + id * args.page_stride + args.layer_offset;
  const KvHead place = kv_head_at(kv, head);
  const float* key = args.k + row * args.k_stride + head * kv.head_dim_k;
  if (is_key) {
    norm_and_turn(args, row, key, args.k_norm, args.k_norm != nullptr, true, kv.head_dim_k, own);
    store_head(kv.format, own, kv.head_dim_k, position % kPageTokens, page + place.k);
  } else {
    const float* value =
        args.v == nullptr ? key : args.v + row * args.v_stride + head * kv.head_dim_v;
    norm_and_turn(args, row, value, nullptr, args.v_norm, false, kv.head_dim_v, own);
    store_head(kv.format, own, kv.head_dim_v, position % kPageTokens, page + place.v);
  }
}

}  // namespace

GpuError place_rows(const Launch& launch, const AttentionArgs& args,
                    const AttentionScratch& scratch) {
  const int heads = args.n_head + (args.k == nullptr ? 0 : 2 * args.kv.kv_heads);
  const dim3 grid(static_cast<unsigned>(args.step.rows),
                  static_cast<unsigned>((heads + kWarps - 1) / kWarps));
  return launch_kernel(launch, place_kernel, grid, dim3(kWarps * kWarp), 0, args, scratch.q);
}

}  // namespace tessera::gpu
