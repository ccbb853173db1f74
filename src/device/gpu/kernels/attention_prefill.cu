// Attention of many rows over f16 pages with tensor cores: online softmax, page by page. On Hopper
// by warpgroups (attention_groups.cuh), elsewhere as here by warps.
//
// A page's keys and values stand in shared memory, each filled by asynchronous copies while the
// other is in use. Floor: 4 * head_dim operations a pair and token seen (4,096 rows of 16 heads of
// 256: 137 GFLOP, 0.2 ms at 790 TFLOP/s).
#include "device/gpu/kernels/attention_groups.cuh"
#include "device/gpu/kernels/attention_prefill.cuh"

namespace tessera::gpu {
namespace {

// `first`: the first of the warp's pairs.
template <int kDim>
__device__ __forceinline__ void score_page(const char* queries, int first, const char* keys,
                                           float (&scores)[8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] = 0;
#pragma unroll 4
  for (int step = 0; step < kDim / 16; ++step) {
    std::uint32_t a[4];
    load_matrices(a, queries + piece_at<kPairs>(first + lane % 16, 2 * step + lane / 16));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t b[4];
      load_matrices(b, keys + piece_at<kPageTokens>(16 * j + lane / 16 * 8 + lane % 8,
                                                    2 * step + lane / 8 % 2));
      multiply_f16(scores[2 * j], a, b[0], b[1]);
      multiply_f16(scores[2 * j + 1], a, b[2], b[3]);
    }
  }
}

template <int kDim>
__device__ __forceinline__ void add_values(const char* values, const float (&weights)[8][4],
                                           float (&out)[kDim / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 0; step < kPageTokens / 16; ++step) {
    std::uint32_t a[4];
    weights_of(weights, step, a);
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) {
      std::uint32_t b[4];
      load_matrices_turned(
          b, values + piece_at<kPageTokens>(16 * step + lane % 16, 2 * j + lane / 16));
      multiply_f16(out[2 * j], a, b[0], b[1]);
      multiply_f16(out[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// `narrow`: keys and values take turns in one place, since two do not fit.
template <int kDim>
__device__ __forceinline__ void attend_in_warps(const AttentionArgs& args, const __half* q,
                                                char* queries, bool narrow) {
  char* keys = queries + kQueryBytes<kDim>;
  char* values = narrow ? keys : keys + kPageBytes<kDim>;
  const PrefillBlock block(args);
  if (block.pairs <= 0) return;
  const auto page_start = [&](int page) { return page_of(args, block.index, page); };
  const int first = static_cast<int>(threadIdx.x) / kWarp * 16;
  Pairs p(block);
  float out[kDim / 8][4] = {};
  const auto copy_keys = [&](int page) {
    if (page < block.end)
      copy_page<kDim>(keys, page_start(page) + block.place.k, block.valid(page));
  };
  const auto copy_values = [&](int page) {
    copy_page<kDim>(values, page_start(page) + block.place.v, block.valid(page));
  };
  copy_queries<kDim>(queries, args, block, q);
  copy_keys(block.begin);
  copy_commit();
  for (int page = block.begin; page < block.end; ++page) {
    if (!narrow) copy_values(page);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    float scores[8][4], factor[2];
    score_page<kDim>(queries, first, keys, scores);
    __syncthreads();
    if (narrow)
      copy_values(page);
    else
      copy_keys(page + 1);
    copy_commit();
    weigh_page(args, block, page, p, scores, factor);
    shrink<kDim>(factor, out);
    if (narrow)
      copy_wait<0>();
    else
      copy_wait<1>();
    __syncthreads();
    add_values<kDim>(values, scores, out);
    __syncthreads();
    if (narrow) {
      copy_keys(page + 1);
      copy_commit();
    }
  }
  copy_wait<0>();
  // Half of the warps at a time, where not all of their sums fit.
  for (int turn = 0; turn < (narrow ? 2 : 1); ++turn) {
    if (!narrow || first / (kPairs / 2) == turn)
      store_pairs<kDim>(args, block, p, out, narrow ? first % (kPairs / 2) : first, queries);
    if (narrow) __syncthreads();
  }
}

template <int kDim>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args, const __half* q, bool narrow) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  chain_wait();
  chain_trigger();
#ifdef TESSERA_GPU_WGMMA
  attend_in_groups<kDim>(args, q, shared);
#else
  attend_in_warps<kDim>(args, q, shared, narrow);
#endif
}

template <int kDim>
GpuError launch_prefill(const Launch& launch, const AttentionArgs& args,
                        const AttentionScratch& scratch) {
  const int heads = args.n_head / args.kv.kv_heads;
  const dim3 grid(
      static_cast<unsigned>(args.kv.kv_heads),
      static_cast<unsigned>((args.step.max_sequence_rows * heads + kPairs - 1) / kPairs),
      static_cast<unsigned>(args.step.n_sequences));
  // Code with the warpgroup instruction runs on compute capability 9 alone.
  constexpr int kWide = kQueryBytes<kDim> + 2 * kPageBytes<kDim>;
  const bool narrow = shared_limit(launch) < kWide;
  const int shared = compute_major() == 9 ? kGroupsShared<kDim>
                     : narrow             ? kWide - kPageBytes<kDim>
                                          : kWide;
  return launch_kernel(launch, prefill_kernel<kDim>, grid, dim3(kPrefillThreads),
                       static_cast<std::size_t>(shared), args, scratch.half_q, narrow);
}

}  // namespace

bool has_prefill_attention(const AttentionArgs& args) {
#ifdef TESSERA_GPU_HIP
  return false;  // the loads of matrices are NVIDIA's
#else
  const int dim = args.kv.head_dim_k;
  return args.step.rows > kDecodeRows && args.kv.format == KvFormat::f16 &&
         dim == args.kv.head_dim_v && (dim == 64 || dim == 128 || dim == 256);
#endif
}

GpuError attend_prefill(const Launch& launch, const AttentionArgs& args,
                        const AttentionScratch& scratch) {
  switch (args.kv.head_dim_k) {
    case 64:
      return launch_prefill<64>(launch, args, scratch);
    case 128:
      return launch_prefill<128>(launch, args, scratch);
    default:
      return launch_prefill<256>(launch, args, scratch);
  }
}

}  // namespace tessera::gpu
