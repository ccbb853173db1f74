// What the decode projections by super-blocks are given, where a unit of work lies, and products of
// plain rows (F32, F16, BF16) beside them: a unit is kPlainRows rows, a block's warps share its
// columns. Plain rows meet the input unrounded.
#pragma once

#include "device/gpu/kernels/project_decode.cuh"
#include "device/gpu/kernels/super_input.cuh"
#include "device/gpu/kernels/supers_eight.cuh"

namespace tessera::gpu {

inline constexpr int kPlainRows = 2;  // in one unit of a plain matrix

struct Segment {
  Planes w;
  float* out;
  std::int64_t stride;
  bool add;
  int end_unit;  // units of this and the segments before it of its kind
};

struct SuperArgs {
  Input in;
  int rows;
  int supers;     // of a row
  int part_bits;  // 1 << part_bits warps share the columns of a unit
  int units;      // of the quantised segments, which come first
  int plain_units;
  int first_plain;   // segment
  int plain_blocks;  // of eight rows, that do nothing else; of one, every block does some
  Segment segments[kMaxOutputs];
  int ends[kMaxOutputs - 1];  // end_unit of the quantised segments but the last
  SuperRoom room;
  std::byte*
      rounded;  // read where a block takes several rows; written by a plain kernel if not null
  int here;     // project_stream(): of each row so many super-blocks are read there in any case
};

struct Place {
  const Segment* segment;
  int tile;  // of the segment
};
// Of a quantised unit: without loads that wait for each other.
__device__ __forceinline__ Place place_of(const SuperArgs& args, int unit) {
  int segment = 0, begin = 0;
#pragma unroll
  for (int i = 0; i + 1 < kMaxOutputs; ++i)
    if (unit >= args.ends[i]) segment = i + 1, begin = args.ends[i];
  return {&args.segments[segment], unit - begin};
}
__device__ __forceinline__ Place plain_place_of(const SuperArgs& args, int unit) {
  int segment = args.first_plain, begin = 0;
  while (unit >= args.segments[segment].end_unit) begin = args.segments[segment++].end_unit;
  return {&args.segments[segment], unit - begin};
}

// A warp's sums of 16 rows with the rows of tokens that a block takes.
template <int kCols>
struct SumsOf {
  using Type = EightSums;
};
template <>
struct SumsOf<1> {
  using Type = RowSums;
};

// One matrix of at least so many units, by whole tiles a warp; `columns`, 1 or kDecodeRows: rows a
// block, for which args.room is made.
int least_wide_units(const Launch& launch);
GpuError project_wide(const Launch& launch, const SuperArgs& args, int columns);

// Matrices that give every multiprocessor many super-blocks. Several rows are rounded to `rounded`
// here. The units of Q6_K matrices come first.
bool has_project_stream(const Launch& launch, int units, int supers);
GpuError project_stream(const Launch& launch, const SuperArgs& args, int six_units,
                        const Rounding& rounding);

// The plain matrices times several rows, by clusters of blocks; leaves the rows in args.rounded if
// not null. The same bits as the plain units of the other kernels, of whose columns `shares` warps
// have a part each.
bool has_plain_rows(const Launch& launch, const SuperArgs& args, int shares);
GpuError plain_rows(const Launch& launch, const SuperArgs& args);

// --- A warp's share of a unit ---

__device__ __forceinline__ void put_sums(const RowSums& sums, int lane, float* shares) {
  const float low = sums.total(0), high = sums.total(1);
  const int g = lane / 4, t = lane % 4;
  if (t < 2) shares[g + 8 * t] = t == 0 ? low : high;
}
__device__ __forceinline__ void put_sums(const EightSums& sums, int lane, float* shares) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    *reinterpret_cast<float2*>(shares + (g + 8 * half) * kDecodeRows + 2 * t) =
        make_float2(sums.total(2 * half), sums.total(2 * half + 1));
}

// A warp's copy of one super-block of `n` rounded rows to place `to` of each, and of their squares.
__device__ __forceinline__ void copy_super(const SuperArgs& args, int first, int n, int super,
                                           int to, int lane, char* shared) {
  constexpr int kPieces = kSuperBytes / 16, kEach = kDecodeRows * kPieces / kWarp;
  const char* from = rounded_row(args.rounded, args.in.cols, first);
  const std::int64_t stride = rounded_row_bytes(args.in.cols);
  uint4 v[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = (i * kWarp + lane) / kPieces, at = (i * kWarp + lane) % kPieces;
    if (row < n)
      v[i] = *reinterpret_cast<const uint4*>(from + row * stride + super * kSuperBytes + at * 16);
  }
  if (lane < n && args.in.kind == InputKind::rms_norm)
    reinterpret_cast<float*>(shared + args.room.squares)[lane * args.supers + super] =
        rounded_squares(from + lane * stride, args.in.cols)[super];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = (i * kWarp + lane) / kPieces, at = (i * kWarp + lane) % kPieces;
    if (row < n)
      *reinterpret_cast<uint4*>(shared + row * args.room.row_bytes + to * kSuperBytes + at * 16) =
          v[i];
  }
}

// --- Plain rows ---

__device__ __forceinline__ Eight plain_eight(const Planes& w, int row, int super, int lane) {
  const std::int64_t at = static_cast<std::int64_t>(min(row, w.rows - 1)) * w.cols +
                          super * kSuperCols + eight_at(lane);
  return {plain_four(w, at), plain_four(w, at + 16)};
}
__device__ __forceinline__ float dot_eight(const Eight& a, const Eight& b, float sum) {
  sum = __fmaf_rn(a.low.x, b.low.x, sum), sum = __fmaf_rn(a.low.y, b.low.y, sum);
  sum = __fmaf_rn(a.low.z, b.low.z, sum), sum = __fmaf_rn(a.low.w, b.low.w, sum);
  sum = __fmaf_rn(a.high.x, b.high.x, sum), sum = __fmaf_rn(a.high.y, b.high.y, sum);
  sum = __fmaf_rn(a.high.z, b.high.z, sum), sum = __fmaf_rn(a.high.w, b.high.w, sum);
  return sum;
}

struct Share {
  int begin, end;  // super-blocks
};

__device__ __forceinline__ Share share_of(const SuperArgs& args, int part) {
  return {args.supers * part >> args.part_bits, args.supers * (part + 1) >> args.part_bits};
}

// --- Plain units ---

// Of a warp's columns: a lane's part of the sums, [row of the unit][column], and of each column's
// input the squares, in lane `column`.
template <int kCols>
struct PlainSums {
  float of[kPlainRows * kCols], squares;
};

// A warp's share of a plain unit: `w` holds its first super-block. The rows come from memory.
template <int kCols>
__device__ __forceinline__ void plain_share(const SuperArgs& args, const Place& at, Share share,
                                            const Eight (&first_w)[kPlainRows], int first, int n,
                                            int lane, PlainSums<kCols>& sums) {
  Eight w[kPlainRows];
#pragma unroll
  for (int r = 0; r < kPlainRows; ++r) w[r] = first_w[r];
  for (int super = share.begin; super < share.end; ++super) {
    if (super != share.begin)
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r)
        w[r] = plain_eight(at.segment->w, at.tile * kPlainRows + r, super, lane);
    const Eight weight = super_weight(args.in, super, lane);
    float square[kCols] = {};
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      if (j >= n) break;
      Eight x =
          normed_input(args.in, load_input(args.in, first + j, super, lane), weight, square[j]);
      if (args.in.kind == InputKind::gated_rms)
        x = {times(x.low, square[j]), times(x.high, square[j])};
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r)
        sums.of[r * kCols + j] = dot_eight(w[r], x, sums.of[r * kCols + j]);
    }
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const float sum = sum_of_groups(square[j]);
      if (lane == j) sums.squares += sum;
    }
  }
}

// The first super-block of a warp's share.
__device__ __forceinline__ void load_plain(Eight (&w)[kPlainRows], const Place& at, Share share,
                                           int lane) {
#pragma unroll
  for (int r = 0; r < kPlainRows; ++r)
    w[r] = share.begin < share.end
               ? plain_eight(at.segment->w, at.tile * kPlainRows + r, share.begin, lane)
               : Eight{};
}
// A warp's part of a unit's sums, to the block's shares: [warp][kPlainRows + 1][kCols].
template <int kCols>
inline constexpr int kPlainShare = (kPlainRows + 1) * kCols;
template <int kCols>
__device__ __forceinline__ void put_plain(const SuperArgs& args, const Place& at, Share share,
                                          const Eight (&w)[kPlainRows], int first, int n,
                                          float* shares) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  PlainSums<kCols> sums{};
  plain_share<kCols>(args, at, share, w, first, n, lane, sums);
  float* own = shares + warp * kPlainShare<kCols>;
  constexpr int kLanes = kWarp / (kPlainRows * kCols);
  const float all = spread_sums(sums.of, lane);
  if (lane % kLanes == 0) own[lane / kLanes] = all;
  if (lane < kCols) own[kPlainRows * kCols + lane] = sums.squares;
}
// The unit's results, of the shares of all warps.
template <int kCols>
__device__ __forceinline__ void add_plain(const SuperArgs& args, const Place& at, int first, int n,
                                          const float* shares) {
  const int r = static_cast<int>(threadIdx.x) / kCols,
            column = static_cast<int>(threadIdx.x) % kCols;
  const int row = at.tile * kPlainRows + r;
  if (r >= kPlainRows || column >= n || row >= at.segment->w.rows) return;
  float sum = 0, squares = 0;
  for (int i = 0; i < 1 << args.part_bits; ++i) {
    const float* from = shares + i * kPlainShare<kCols> + column;
    sum += from[r * kCols];
    squares += from[kPlainRows * kCols];
  }
  if (args.in.kind == InputKind::rms_norm)
    sum = __fmul_rn(sum, inverse_root(squares / static_cast<float>(args.in.cols) + args.in.eps));
  float* to = at.segment->out + (first + column) * at.segment->stride + row;
  *to = at.segment->add ? *to + sum : sum;
}
// All warps of the block: one unit of plain rows. `shares`: wants them free and leaves them in use.
template <int kCols>
__device__ __forceinline__ void plain_unit(const SuperArgs& args, const Place& at, Share share,
                                           const Eight (&w)[kPlainRows], int first, int n,
                                           float* shares) {
  put_plain<kCols>(args, at, share, w, first, n, shares);
  __syncthreads();
  add_plain<kCols>(args, at, first, n, shares);
}

template <int kCols>
__device__ __forceinline__ void plain_units(const SuperArgs& args, int from, int step, Share share,
                                            int first, int n, float* shares) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int unit = from; unit < args.plain_units; unit += step) {
    const Place at = plain_place_of(args, unit);
    Eight w[kPlainRows];
    load_plain(w, at, share, lane);
    __syncthreads();
    plain_unit<kCols>(args, at, share, w, first, n, shares);
  }
}

}  // namespace tessera::gpu
