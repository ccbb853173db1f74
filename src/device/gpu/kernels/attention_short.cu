// Attention of rows that see nothing of each other, while their contexts are short (f16 pages, up
// to 512 tokens): the blocks of a row and KV head, one a page, are a cluster. Each asks for its
// page's keys and values, all but the row's own, ahead of its wait for the kernel before, and the
// sums of all pages meet in shared memory, where the blocks add up a part of the columns each: a
// kernel and two trips to L2 less than attention_decode.cu and combine_spans() take. Every sum has
// the order that it has there, and so the same bits.
// Floor: the launch; 512 tokens of 2 heads of 256 are 1 MB a row.
#include "device/gpu/kernels/attention_combine.cuh"
#include "device/gpu/kernels/attention_heads.cuh"
#include "device/gpu/kernels/attention_page.cuh"
#include "device/gpu/kernels/attention_span.cuh"
#include "device/gpu/kernels/bulk_copy.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = kSpanThreads, kWarps = kSpanWarps;
static_assert(span_tokens(kFewSpans * kPageTokens) == kPageTokens, "a span is a page");
static_assert(kWarps == kPageWarps);

#ifdef TESSERA_GPU_WGMMA

// The spans' sums, which lie in shared memory of the cluster's blocks ([heads][kDim + 2], with top
// and weight), added up: a column a lane, groups of 32 columns shared out among all warps. Made
// behind the wait for the kernel before, whose results are the gates.
template <int kDim>
class Combine {
 public:
  __device__ __forceinline__ Combine(const AttentionArgs& args, int row, int kv_head, int heads)
      : args_(args), row_(row), first_head_(kv_head * heads), heads_(heads) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      gate_[i] = head(i) < heads ? gate_factor(args, row, first_head_ + head(i), column(i)) : 0.0f;
  }
  // Of the spans [first, end), a block's each. The kernel behind is let in when the sums are there:
  // sooner it is in the way (10 us of a step of eight rows).
  __device__ __forceinline__ void add_up(const float* sums, int first, int end,
                                         std::byte* rounded) {
    __syncwarp();
    cluster_sync();
    chain_trigger();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (head(i) >= heads_) break;
      const float* of_head = sums + head(i) * (kDim + 2);
      const auto part = [&](int span) {
        const int rank = first + span;
        return SpanPart{load_in(rank, of_head + kDim), load_in(rank, of_head + kDim + 1),
                        load_in(rank, of_head + column(i))};
      };
      float sum = 0, value = 0;
      combine_few(end - first, part, sum, value);
      put_output(args_, rounded, row_, (first_head_ + head(i)) * kDim + column(i),
                 value / sum * gate_[i]);
    }
    __syncwarp();
    cluster_arrive();  // it has read the sums
  }

 private:
  static constexpr int kAllWarps = kFewSpans * kWarps, kGroups = kDim / kWarp;
  static constexpr int kEach = (kMaxHeads * kGroups + kAllWarps - 1) / kAllWarps;
  __device__ __forceinline__ int group(int i) const {
    return i * kAllWarps + cluster_rank() * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  }
  __device__ __forceinline__ int head(int i) const { return group(i) / kGroups; }
  __device__ __forceinline__ int column(int i) const {
    return group(i) % kGroups * kWarp + static_cast<int>(threadIdx.x) % kWarp;
  }

  const AttentionArgs& args_;
  const int row_, first_head_, heads_;
  float gate_[kEach];
};

// Query heads, the row's key and its value; then the sums.
template <int kDim>
union Room {
  float heads[kMaxHeads + 2][kDim];
  float sums[kMaxHeads][kDim + 2];
};

#endif

// Two blocks a multiprocessor: of 132 with one each, 15 clusters of eight find room, and eight rows
// of two KV heads are 16.
template <int kDim>
__global__ void TESSERA_CLUSTER(kFewSpans) __launch_bounds__(kThreads, 2)
    short_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args, std::byte* rounded) {
#ifdef TESSERA_GPU_WGMMA
  __shared__ SpanShared<kMaxHeads> s;
  __shared__ alignas(16) Room<kDim> room;
  const int row = static_cast<int>(blockIdx.z), kv_head = static_cast<int>(blockIdx.y);
  const int span = cluster_rank(), heads = args.n_head / args.kv.kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // The step's tables are older than the kernel before this one, and so are all keys and values but
  // the step's own.
  const int position = args.step.position[row], start = span * kPageTokens;
  const SpanTokens tokens{start, kPageTokens, first_seen(args, position), position + 1};
  const int first_span = tokens.begin / kPageTokens, end_span = position / kPageTokens + 1;
  if (span < first_span || span >= end_span) {
    chain_wait();
    Combine<kDim>(args, row, kv_head, heads).add_up(room.sums[0], first_span, end_span, rounded);
    return;
  }
  const std::byte* page = page_of(args, args.step.sequence[row], span);
  const KvHead place = kv_head_at(args.kv, kv_head);
  PageKeys<kDim> keys;
  PageValues<kDim> values;
  keys.load({&page, place.k}, position - start, warp, lane);
  values.load({&page, place.v}, position - start, lane);
  const PlaceConstants<kDim> constants(args, row, lane);
  const bool own = span == end_span - 1;  // the row's token is in this page
  chain_wait();
  Combine<kDim> combine(args, row, kv_head, heads);
  place_heads<kDim>(args, constants, row, kv_head, heads,
                    own ? const_cast<std::byte*>(page) : nullptr, position - start, room.heads);
  __syncthreads();
  if (own) {
    keys.put(room.heads[heads], position - start, warp, lane);
    values.put(room.heads[heads + 1], position - start, lane);
  }
  hide_scores<kWarps>(heads, tokens, s);
  if (tokens.sees_eight(warp * 8))
    score_eight<kDim>(QueryHeads<kDim>{room.heads[0], heads, lane}, keys.of, heads, args.softcap,
                      tokens, warp * 8, s);
  __syncthreads();
  const auto put = [&](int head, int at, float value) { room.sums[head][at] = value; };
  weigh_span<kWarps>(heads, kDim, tokens, put, s);
  __syncthreads();
  ValueSum<kDim, kWarps> sum;
  const int seen = min(tokens.end - start, kPageTokens);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    if (4 * step < seen) sum.add(values.of[step], heads, 16 * (lane % 4) + 4 * step, s);
  sum.give(heads, put);
  combine.add_up(room.sums[0], first_span, end_span, rounded);
  cluster_await();  // all have
#elif defined(TESSERA_GPU_PTX)
  __trap();  // attends_short() says no
#endif
}

}  // namespace

// As many clusters as leave each block a multiprocessor. On 132 multiprocessors 32 clusters took
// longer than the two kernels; 17 to 31 were not measured.
bool attends_short(const Launch& launch, const AttentionArgs& args) {
  return launch.gemm && attention_places(args) &&
         args.step.rows * args.kv.kv_heads * kFewSpans <= launch.multiprocessors &&
         attention_spans(args.step.rows, args.max_context) <= kFewSpans;
}

GpuError attend_short(const Launch& launch, const AttentionArgs& args, std::byte* rounded) {
  const dim3 grid(kFewSpans, static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>(args.step.rows));
  const int dim = args.kv.head_dim_k;
  const auto kernel = dim == 64    ? short_kernel<64>
                      : dim == 128 ? short_kernel<128>
                                   : short_kernel<256>;
  return launch_kernel(launch, kernel, grid, dim3(kThreads), 0, args, rounded);
}

}  // namespace tessera::gpu
