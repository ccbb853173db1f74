// What the kernels and the functions that count for them agree on.
#pragma once

#include "device/gpu/kernels/kernels.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif

namespace tessera::gpu {

// Choosing a token (choose.cuh): pieces of a row of logits, bins of its weights, tokens that are
// ranked at most, and the workspace of a row.
inline constexpr int kChoicePieces = 64;
inline constexpr int kChoiceBins = 1024;
inline constexpr int kChoiceCandidates = 4096;
inline constexpr std::size_t kChoiceWorkBytes =
    8 * (kChoiceBins + kChoicePieces + kChoiceCandidates) + 8 * kChoicePieces + 4 * kChoiceBins + 8;

// A decode row's context is cut into spans; each gives one partial result and they are merged first
// span first, so that a row's result does not depend on the batch. Short contexts are cut finer,
// for as many multiprocessors to read them as there are: into 64 spans at most up to 16,384 tokens.
// Windows are cut as the context that they end is.
inline constexpr int kMostSpanTokens = 256;
TESSERA_HOST_DEVICE constexpr int span_bits(int context) {
  return context <= 4096 ? 6 : context <= 8192 ? 7 : 8;
}
TESSERA_HOST_DEVICE constexpr int span_tokens(int context) {
  return 1 << span_bits(context);
}
TESSERA_HOST_DEVICE constexpr int spans_of(int context) {
  return (context + span_tokens(context) - 1) >> span_bits(context);
}
static_assert(kMostSpanTokens == span_tokens(1 << 30));
// Up to so many are added up without a barrier, and by the blocks that attended where these may be
// a cluster (attention_short.cu).
inline constexpr int kFewSpans = 8;
// Of contexts up to this one.
constexpr int most_spans(int max_context) {
  const int finest = spans_of(max_context < 4096 ? max_context : 4096);
  const int longest = spans_of(max_context);
  return finest > longest ? finest : longest;
}
inline int attention_spans(int rows, int max_context) {
  return rows > kDecodeRows ? 1 : most_spans(max_context);
}

// Prompts of fewer rows go through the delta net row by row.
inline constexpr int kLeastChunkedRows = 32;
inline constexpr int kDeltaChunk = 64;
inline bool has_delta_chunks(const GatedDeltaSpec& spec) {
#ifdef TESSERA_HIP
  if (spec.dim_k > 64) return false;  // a chunk of such heads does not fit 64 KB
#endif
  return spec.dim_k == spec.dim_v && (spec.dim_k == 64 || spec.dim_k == 128);
}
inline bool goes_in_chunks(const GatedDeltaSpec& spec, const StepRows& step) {
  return step.max_sequence_rows >= kLeastChunkedRows && has_delta_chunks(spec);
}
std::size_t delta_convolution_bytes(const GatedDeltaSpec& spec, int rows);  // a multiple of 256
// Convolutions of the usual width are part of the chunks' kernel, which then needs no convolved
// rows; the buffers of the chunks begin where those end.
inline constexpr int kDeltaTaps = 4;
inline bool chunks_convolve(const GatedDeltaSpec& spec) {
  return spec.conv_width == kDeltaTaps;
}
inline std::size_t delta_chunks_at(const GatedDeltaSpec& spec, int rows) {
  return chunks_convolve(spec) ? 0 : delta_convolution_bytes(spec, rows);
}

// Of so many rows the FFN's hidden activations go from gate and up to down rounded
// (rounds_hidden()).
inline constexpr int kLeastRoundedRows = 2;

struct FfnShape {
  int slots = 0;       // routed slots a row
  int expert_pad = 0;  // columns of one, padded to tiles
  int dense_pad = 0;   // 0: no dense branch
  int h_stride = 0;
  TESSERA_HOST_DEVICE bool dense() const { return dense_pad > 0; }
};
FfnShape ffn_shape(const FfnArgs& args);

// The FFN's workspace: first what the decode kernels use, then the tile kernels' buffers at these
// offsets.
struct TilesLayout {
  std::size_t x, x_rest, h, dense_h, list, first, tiles, n_tiles, weights, bytes;
};
TilesLayout tiles_layout(const FfnArgs& args);

// A row rounded once for all blocks of the products by super-blocks (supers.cuh): kSuperBytes for
// each 256 columns, then for each of them its part of the row's sum of squares, f32. At most two
// bytes a column.
inline constexpr int kSuperBytes = 384;
TESSERA_HOST_DEVICE constexpr std::int64_t rounded_row_bytes(int cols) {
  return std::int64_t{cols / kSuperCols} * kSuperBytes +
         (std::int64_t{cols / kSuperCols} * 4 + 127) / 128 * 128;
}

// Rows of halves (half_rows.cuh): tiles of so many rows.
inline constexpr int kHalfTileRows = 128;
std::size_t half_rows_bytes(std::size_t rows, int cols);

// Prompts of so many rows may have their weights decoded once, to halves, where the device has a
// product for it (gemm.cuh); that many bytes of them at a time at most. The rows of weights in a
// tile.
inline constexpr int kGemmRows = 512;
inline constexpr int kGemmTile = 256;
inline constexpr std::size_t kMostGemmRoom = std::size_t{96} << 20;
std::size_t gemm_room(int rows, int weight_rows, int cols);

// Tokens of a tensor-core tile at most, where matrices have few and where they have many.
inline constexpr int kFewTokens = 32, kNarrowTokens = 64, kTileTokens = 128;

}  // namespace tessera::gpu
