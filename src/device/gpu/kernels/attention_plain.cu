// Attention in plain f32 arithmetic, for every page format and head size: what the tensor-core
// kernels do not take, and what they are tested against. One block a row, KV head and span.
#include "device/gpu/kernels/attention_combine.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kHeads = 8;  // query heads of one pass

// Element d of a token's key or value.
__device__ __forceinline__ float kv_at(KvFormat format, const std::byte* head, int dims, int token,
                                       int d) {
  const int at = token * dims + d;
  if (format == KvFormat::f16) return __half2float(reinterpret_cast<const __half*>(head)[at]);
  if (format == KvFormat::f32) return reinterpret_cast<const float*>(head)[at];
  const auto* scales = reinterpret_cast<const __half*>(head + dims * kPageTokens);
  return static_cast<float>(reinterpret_cast<const signed char*>(head)[at]) *
         __half2float(scales[token * (dims / 32) + d / 32]);
}

struct Shared {
  float scores[kHeads][kPageTokens];
  float top[kHeads], sum[kHeads], keep[kHeads];
};

__device__ void score_page(const AttentionArgs& args, const float* q, int heads,
                           const std::byte* keys, int first, int end, Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int dims = args.kv.head_dim_k;
  for (int token = warp; token < kPageTokens; token += kWarps) {
    float sum[kHeads] = {};
    if (token >= first && token < end)
      for (int d = lane; d < dims; d += kWarp) {
        const float k = kv_at(args.kv.format, keys, dims, token, d);
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
          if (h < heads) sum[h] = fmaf(q[h * dims + d], k, sum[h]);
      }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float score = warp_sum(sum[h]);
      if (args.softcap > 0) score = args.softcap * tanhf(score / args.softcap);
      if (lane == 0) s.scores[h][token] = token >= first && token < end ? score : -INFINITY;
    }
  }
}

// One warp a head: weights in place of scores.
__device__ void weigh_page(int heads, Shared& s) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int h = warp; h < heads; h += kWarps) {
    const float a = s.scores[h][lane], b = s.scores[h][lane + kWarp];
    const float top = fmaxf(s.top[h], warp_max(fmaxf(a, b)));
    const float wa = expf(a - top), wb = expf(b - top);
    const float keep = expf(s.top[h] - top);
    const float sum = warp_sum(wa + wb);
    s.scores[h][lane] = wa;
    s.scores[h][lane + kWarp] = wb;
    __syncwarp();
    if (lane == 0) {
      s.keep[h] = keep;
      s.sum[h] = s.sum[h] * keep + sum;
      s.top[h] = top;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    attend_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args,
                  const TESSERA_GRID_CONSTANT AttentionScratch scratch) {
  TESSERA_DYNAMIC_SHARED(float, q_shared);
  __shared__ Shared s;
  chain_wait();
  chain_trigger();
  const int row = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int span = static_cast<int>(blockIdx.z);
  const int position = args.step.position[row], sequence = args.step.sequence[row];
  const int per_kv = args.n_head / args.kv.kv_heads;
  const int dims_k = args.kv.head_dim_k, dims_v = args.kv.head_dim_v;
  const bool whole = scratch.spans == 1;
  const int size = span_tokens(position + 1);
  const int begin = max(first_seen(args, position), whole ? 0 : span * size);
  const int end = whole ? position + 1 : min(position + 1, (span + 1) * size);
  const KvHead place = kv_head_at(args.kv, kv_head);
  for (int first_head = 0; first_head < per_kv; first_head += kHeads) {
    const int heads = min(kHeads, per_kv - first_head);
    const std::int64_t head =
        static_cast<std::int64_t>(row) * args.n_head + kv_head * per_kv + first_head;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < heads * dims_k; i += kThreads)
      q_shared[i] = scratch.q[head * dims_k + i];
    if (threadIdx.x < kHeads) s.top[threadIdx.x] = -INFINITY, s.sum[threadIdx.x] = 0;
    float out[2][kHeads] = {};
    for (int page = begin / kPageTokens; page * kPageTokens < end; ++page) {
      const std::byte* at = page_of(args, sequence, page);
      const int from = max(0, begin - page * kPageTokens);
      const int to = min(kPageTokens, end - page * kPageTokens);
      __syncthreads();
      score_page(args, q_shared, heads, at + place.k, from, to, s);
      __syncthreads();
      weigh_page(heads, s);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = static_cast<int>(threadIdx.x) + i * kThreads;
        if (d >= dims_v) break;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) out[i][h] *= h < heads ? s.keep[h] : 0.0f;
        for (int token = from; token < to; ++token) {
          const float v = kv_at(args.kv.format, at + place.v, dims_v, token, d);
#pragma unroll
          for (int h = 0; h < kHeads; ++h)
            if (h < heads) out[i][h] = fmaf(s.scores[h][token], v, out[i][h]);
        }
      }
    }
    __syncthreads();
    for (int h = 0; h < heads; ++h) {
      float* to = scratch.partials + ((head + h) * scratch.spans + span) * (dims_v + 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = static_cast<int>(threadIdx.x) + i * kThreads;
        if (d >= dims_v) break;
#pragma unroll
        for (int j = 0; j < kHeads; ++j)
          if (j == h) to[d] = out[i][j];
      }
      if (threadIdx.x == 0) to[dims_v] = s.top[h], to[dims_v + 1] = s.sum[h];
    }
  }
}

constexpr int kCombineThreads = 128;

// One block a row, head and kCombineThreads columns. The spans' factors are made once, a chunk of
// spans at a time.
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args,
                   const TESSERA_GRID_CONSTANT AttentionScratch scratch, std::byte* rounded) {
  __shared__ float factor[kCombineThreads], share[kCombineThreads], tops[kCombineThreads / kWarp];
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  // The step's tables are older than the kernel before.
  const int position = args.step.position[row];
  const int dims = args.kv.head_dim_v;
  const int column = static_cast<int>(blockIdx.z) * kCombineThreads + thread;
  const bool mine = column < dims;
  const bool whole = scratch.spans == 1;
  const int size = span_tokens(position + 1);
  const int first = whole ? 0 : first_seen(args, position) / size;
  const int last = whole ? 0 : position / size;
  const float* from = scratch.partials + (static_cast<std::int64_t>(row) * args.n_head + head) *
                                             scratch.spans * (dims + 2);
  chain_wait();
  chain_trigger();
  const float gate = mine ? gate_factor(args, row, head, column) : 0.0f;
  float sum = 0, value = 0;
  if (last - first < kFewSpans) {
    const float* few = from + static_cast<std::int64_t>(first) * (dims + 2);
    const auto part = [&](int i) {
      const float* of = few + i * (dims + 2);
      return SpanPart{of[dims], of[dims + 1], of[mine ? column : 0]};
    };
    combine_few(last + 1 - first, part, sum, value);
  } else {
    float top = -INFINITY;
    for (int i = first + thread; i <= last; i += kCombineThreads)
      top = fmaxf(top, from[i * (dims + 2) + dims]);
    top = warp_max(top);
    if (thread % kWarp == 0) tops[thread / kWarp] = top;
    __syncthreads();
    for (int w = 0; w < kCombineThreads / kWarp; ++w) top = fmaxf(top, tops[w]);
    for (int start = first; start <= last; start += kCombineThreads) {
      const int n = min(kCombineThreads, last + 1 - start);
      __syncthreads();
      if (thread < n) {
        const float* span = from + static_cast<std::int64_t>(start + thread) * (dims + 2) + dims;
        factor[thread] = expf(span[0] - top);
        share[thread] = span[1];
      }
      __syncthreads();
      const float* span =
          from + static_cast<std::int64_t>(start) * (dims + 2) + (mine ? column : 0);
#pragma unroll 16
      for (int i = 0; i < n; ++i) {
        sum = fmaf(share[i], factor[i], sum);
        value = fmaf(span[i * (dims + 2)], factor[i], value);
      }
    }
  }
  if (!mine) return;
  put_output(args, rounded, row, head * dims + column, value / sum * gate);
}

}  // namespace

GpuError attend_plain(const Launch& launch, const AttentionArgs& args,
                      const AttentionScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(args.step.rows), static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>(scratch.spans));
  const std::size_t shared = sizeof(float) * kHeads * static_cast<std::size_t>(args.kv.head_dim_k);
  return launch_kernel(launch, attend_kernel, grid, dim3(kThreads), shared, args, scratch);
}

GpuError combine_spans(const Launch& launch, const AttentionArgs& args,
                       const AttentionScratch& scratch, std::byte* rounded) {
  const dim3 grid(
      static_cast<unsigned>(args.step.rows), static_cast<unsigned>(args.n_head),
      static_cast<unsigned>((args.kv.head_dim_v + kCombineThreads - 1) / kCombineThreads));
  return launch_kernel(launch, combine_kernel, grid, dim3(kCombineThreads), 0, args, scratch,
                       rounded);
}

}  // namespace tessera::gpu
