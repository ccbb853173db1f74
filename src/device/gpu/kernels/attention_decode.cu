// Attention of few rows over f16 pages: one block a row, KV head and span (attention_span.cuh).
// Where no row sees another one of the step the block also norms and turns its query heads, and
// who has the row's own token puts its key and value into their page: a kernel less.
// Floor: the keys and values, 2 * head_dim * 2 bytes a token and KV head (16,384 tokens of 2 heads
// of 256: 33.5 MB, 7.3 us).
#include "device/gpu/kernels/attention_heads.cuh"
#include "device/gpu/kernels/attention_span.cuh"

namespace tessera::gpu {
namespace {

constexpr int kThreads = kSpanThreads, kWarps = kSpanWarps;

// Fetches the keys and values of the span's first `tokens` into L2.
template <int kDim>
__device__ __forceinline__ void prefetch_span(const KvHead& place, int tokens,
                                              const std::byte* const* pages) {
  constexpr int kLine = 128 / sizeof(__half);
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < tokens * kDim; i += kThreads * kLine) {
    const int token = i / kDim;
    const std::byte* page = pages[token / kPageTokens];
    const int at =
        (i - token / kPageTokens * kPageTokens * kDim) * static_cast<int>(sizeof(__half));
    prefetch_line(page + place.k + at);
    prefetch_line(page + place.v + at);
  }
}

// Shared memory of a block that places: the query heads, and room to norm the key and the value.
template <int kDim, bool kPlaces>
struct alignas(16) PlaceRoom {
  float heads[kMaxHeads + 2][kDim];
};
template <int kDim>
struct PlaceRoom<kDim, false> {};

template <int kDim, bool kPlaces>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(const TESSERA_GRID_CONSTANT AttentionArgs args,
                  const TESSERA_GRID_CONSTANT AttentionScratch scratch) {
  __shared__ SpanShared<kMaxHeads> s;
  __shared__ const std::byte* pages[kSpanPages];
  __shared__ PlaceRoom<kDim, kPlaces> room;
  // The step's tables are older than the kernel before this one, and so are all keys and values but
  // the step's own.
  const int row = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int position = args.step.position[row], sequence = args.step.sequence[row];
  const int span = static_cast<int>(blockIdx.z), size = span_tokens(position + 1);
  const int start = span * size;
  const SpanTokens tokens{start, size, first_seen(args, position), position + 1};
  if (start >= tokens.end || start + size <= tokens.begin) {
    chain_trigger();
    return;
  }
  const int heads = args.n_head / args.kv.kv_heads;
  const KvHead place = kv_head_at(args.kv, kv_head);
  const std::int64_t head = static_cast<std::int64_t>(row) * args.n_head + kv_head * heads;
  const std::int64_t stride = static_cast<std::int64_t>(scratch.spans) * (kDim + 2);
  float* partial = scratch.partials + head * stride + span * (kDim + 2);
  if (static_cast<int>(threadIdx.x) < size / kPageTokens) {
    // Pages that nobody sees may not be there: their place is taken by one that is.
    const int page =
        min(max(start / kPageTokens + static_cast<int>(threadIdx.x), tokens.begin / kPageTokens),
            position / kPageTokens);
    pages[threadIdx.x] = page_of(args, sequence, page);
  }
  __syncthreads();
  prefetch_span<kDim>(place, min(tokens.end - start, size), pages);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* q = scratch.q + head * kDim;
  if constexpr (kPlaces) {
    const PlaceConstants<kDim> constants(args, row, lane);
    const bool own = tokens.end <= start + size;  // the row's token is in this span
    auto* page = const_cast<std::byte*>(pages[(position - start) / kPageTokens % kSpanPages]);
    chain_wait();
    chain_trigger();
    place_heads<kDim>(args, constants, row, kv_head, heads, own ? page : nullptr,
                      position % kPageTokens, room.heads);
    q = room.heads[0];
    __syncthreads();
  } else {
    chain_wait();
    chain_trigger();
  }
  const auto put = [&](int of_head, int at, float value) {
    partial[of_head * stride + at] = value;
  };
  hide_scores<kWarps>(heads, tokens, s);
  if (has_scores<kWarps>(tokens)) {
    const QueryRegisters<kDim> queries({q, heads, lane});
    PageRows<kDim, kPlaces> keys{pages, place.k};
    score_tokens<kDim, kWarps, 2>(queries, keys, heads, args.softcap, tokens, s);
  }
  __syncthreads();
  weigh_span<kWarps>(heads, kDim, tokens, put, s);
  __syncthreads();
  PageRows<kDim, kPlaces> values{pages, place.v};
  sum_values<kDim, kWarps, 4>(values, heads, tokens, put, s);
}

}  // namespace

bool has_decode_attention(const AttentionArgs& args) {
  const int dim = args.kv.head_dim_k;
  return args.kv.format == KvFormat::f16 && dim == args.kv.head_dim_v &&
         (dim == 64 || dim == 128 || dim == 256 || dim == 512) &&
         args.n_head / args.kv.kv_heads <= kMaxHeads && args.step.rows <= kDecodeRows;
}

bool attention_places(const AttentionArgs& args) {
  return has_decode_attention(args) && args.step.max_sequence_rows == 1 && args.k != nullptr &&
         !args.v_norm && args.kv.head_dim_k <= kMostPlaced;
}

GpuError attend_decode(const Launch& launch, const AttentionArgs& args,
                       const AttentionScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(args.step.rows), static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>(scratch.spans));
  const int dim = args.kv.head_dim_k;
  const bool places = attention_places(args);
  const auto kernel = dim == 64    ? (places ? decode_kernel<64, true> : decode_kernel<64, false>)
                      : dim == 128 ? (places ? decode_kernel<128, true> : decode_kernel<128, false>)
                      : dim == 256 ? (places ? decode_kernel<256, true> : decode_kernel<256, false>)
                                   : decode_kernel<512, false>;
  return launch_kernel(launch, kernel, grid, dim3(kThreads), 0, args, scratch);
}

}  // namespace tessera::gpu
