// The chunked delta rule's input: the rows of a chunk convolved while they are loaded, l2-normed
// where asked, as halves in shared memory.
//
// A warp takes neighbouring rows of one head, a lane D / 32 neighbouring channels. The rows before
// its own, of which the convolution needs three, come from L1 or L2. A convolution of another width
// than four is a pass before this one, whose result is loaded in its place. Floor of 4,096 rows of
// 8,192 channels: 134 MB read, 45 us at 3 TB/s; two special functions an element, 18 us.
#pragma once

#include "device/gpu/kernels/gated_delta.cuh"
#include "device/gpu/kernels/shared_memory.cuh"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu {
namespace {

constexpr int kChunk = kDeltaChunk;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPad = 8;                     // halves between rows, against bank conflicts
constexpr int kWarpRows = kChunk / kWarps;  // that a warp loads
constexpr int kPast = kDeltaTaps - 1;       // rows before a row that its convolution needs

// A chunk of a sequence: `rows` rows from row `before` of the sequence and row `first` of the step.
struct ChunkPlace {
  int before, rows;
  std::int64_t first;
};

template <int kParts>
__device__ __forceinline__ void load_channels(const float* from, float (&to)[kParts]) {
  if constexpr (kParts == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    static_assert(kParts == 2);
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x, to[1] = v.y;
  }
}

template <int kParts>
__device__ __forceinline__ void store_channels(const float (&x)[kParts], __half* to) {
  if constexpr (kParts == 4)
    *reinterpret_cast<uint2*>(to) = make_uint2(two_halves(x[0], x[1]), two_halves(x[2], x[3]));
  else
    *reinterpret_cast<std::uint32_t*>(to) = two_halves(x[0], x[1]);
}

// Rows first .. first + kWarpRows - 1 of the chunk from channel c on, convolved.
template <int kParts>
__device__ __forceinline__ void convolve_rows(const DeltaArgs& args, const DeltaShape& s,
                                              const Sequence& sequence, const ChunkPlace& chunk,
                                              int first, int c, float (&out)[kWarpRows][kParts]) {
  float x[kWarpRows + kPast][kParts], taps[kDeltaTaps][kParts];
  const float* from = args.qkv + (chunk.first + first - kPast) * s.channels + c;
#pragma unroll
  for (int i = 0; i < kWarpRows + kPast; ++i) {
    const int row = first - kPast + i, t = chunk.before + row;
#pragma unroll
    for (int part = 0; part < kParts; ++part) x[i][part] = 0.0f;
    if (i < kPast && t < 0) {  // of an earlier step
      const int turn = (sequence.first_position + t + kDeltaTaps) % kDeltaTaps;
      load_channels(args.state + sequence.slot * args.slot_stride + turn * s.channels + c, x[i]);
    } else if (row < chunk.rows) {
      load_channels(from, x[i]);
    }
    from += s.channels;
  }
#pragma unroll
  for (int j = 0; j < kDeltaTaps; ++j) load_channels(args.taps + j * s.channels + c, taps[j]);
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r)
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kDeltaTaps; ++j) sum = fmaf(taps[j][part], x[r + j][part], sum);
      // Past the end three rows still see the ones before.
      out[r][part] = first + r < chunk.rows ? quick_silu(sum) : 0.0f;
    }
}

// The same where they were convolved before.
template <int kParts>
__device__ __forceinline__ void load_convolved(const float* conv, const DeltaShape& s,
                                               const ChunkPlace& chunk, int first, int c,
                                               float (&out)[kWarpRows][kParts]) {
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) out[r][part] = 0.0f;
    if (first + r < chunk.rows)
      load_channels(conv + (chunk.first + first + r) * s.channels + c, out[r]);
  }
}

// Each row divided by its length; a row stands in all lanes of the warp.
template <int kParts>
__device__ __forceinline__ void norm_rows(float (&x)[kWarpRows][kParts]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float squares[kWarpRows];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    squares[r] = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) squares[r] = fmaf(x[r][part], x[r][part], squares[r]);
  }
  const float factor = inverse_root(spread_sums(squares, lane) + kL2Eps);
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    const float own = shuffle(factor, r * (kWarp / kWarpRows));
#pragma unroll
    for (int part = 0; part < kParts; ++part) x[r][part] *= own;
  }
}

// A head's D channels from `channel` on, of all rows of the chunk; zeros past the end.
template <int D, bool kNormed>
__device__ __forceinline__ void load_head(const DeltaArgs& args, const DeltaShape& s,
                                          const Sequence& sequence, const ChunkPlace& chunk,
                                          const float* conv, int channel,
                                          __half (&to)[kChunk][D + kPad]) {
  constexpr int kParts = D / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = warp * kWarpRows, c = channel + lane * kParts;
  float x[kWarpRows][kParts];
  if (conv == nullptr)
    convolve_rows(args, s, sequence, chunk, first, c, x);
  else
    load_convolved(conv, s, chunk, first, c, x);
  if constexpr (kNormed) norm_rows(x);
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) store_channels(x[r], &to[first + r][lane * kParts]);
}

}  // namespace
}  // namespace tessera::gpu
