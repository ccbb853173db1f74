// A warp's way through the line of a product of many super-blocks a multiprocessor
// (project_stream.cu): its run, with one or two super-blocks of weights on their way.
#pragma once

#include "device/gpu/kernels/stream_line.cuh"

namespace tessera::gpu {

template <BlockType kType>
__device__ __forceinline__ void dot_stream(const RawSuper& raw, const char* row, const SuperRoom&,
                                           int lane, RowSums& sums) {
  dot_super<kType>(raw, row, lane, sums);
}
template <BlockType kType>
__device__ __forceinline__ void dot_stream(const RawSuper& raw, const char* rows,
                                           const SuperRoom& room, int lane, EightSums& sums) {
  dot_super<kType>(raw, rows, room.row_bytes, lane, sums);
}

// A warp's run through the line. Super-blocks are of Q6_K up to `middle`, then of Q4_K: each part
// has code of its own.
template <int kCols, bool kPair, int kParts>
struct Run {
  const StreamArgs& args;
  const Team<kParts>& team;
  int begin, middle, end, lane;
  Cursor ahead;  // behind what `raw` holds: the next two super-blocks
  RawSuper raw[2];

  __device__ __forceinline__ Run(const StreamArgs& of, const Team<kParts>& blocks,
                                 const Line<kParts>& line, int warp, int this_lane)
      : args(of), team(blocks), begin(line.bound(warp)), end(line.bound(warp + 1)),
        lane(this_lane) {
    middle = max(begin, min(end, line.six * of.cut.supers));
  }

  template <BlockType kType>
  __device__ __forceinline__ void fetch(int i) {
    const Place at = tile_at<kPair>(args, team, ahead.tile);
    load_super<kType>(raw[i], at.segment->w, at.tile, team.begin + ahead.super, lane);
    ahead.advance(team.supers);
  }
  template <BlockType kType>
  __device__ __forceinline__ void fetch_first(int from, int to) {
    ahead = Cursor::of(from, team);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (from + i < to) fetch<kType>(i);
  }

  // Ahead of the rows: two super-blocks are asked for, and one more to L2.
  __device__ __forceinline__ void start() {
    if (begin < middle)
      fetch_first<BlockType::Q6_K>(begin, middle);
    else
      fetch_first<BlockType::Q4_K>(begin, end);
    if (begin + 2 >= end) return;
    const Place place = tile_at<kPair>(args, team, ahead.tile);
    prefetch_super(place.segment->w, place.tile, team.begin + ahead.super, lane);
  }

  // Behind super-block number `at`, at the cursor, of the part from `from` to `to`: where a piece
  // ends, or what the warp has of a tile.
  __device__ __forceinline__ void end_sum(const Cursor& cursor, int at, int from, int to, int warp,
                                          typename SumsOf<kCols>::Type& sums,
                                          const Sums<kCols, kParts>& out) const {
    const bool ends = cursor.super + 1 == team.supers;
    if constexpr (kParts > 1) {
      constexpr int kN = kPiece<kParts>;
      if (!ends && cursor.super % kN != kN - 1) return;
      put_sums(sums, lane, out.slot(cursor.tile * out.pieces + cursor.super / kN));
    } else {
      if (!ends && at + 1 != to) return;
      put_sums(sums, lane, out.slot(cursor.tile + warp));
      if (lane == 0 && at - cursor.super >= from) out.first[cursor.tile] = warp;
      if (lane == 0 && ends) out.last[cursor.tile] = warp;
    }
    sums = {};
  }
  template <BlockType kType>
  __device__ __forceinline__ void multiply(int from, int to, const char* rows, int warp,
                                           const Sums<kCols, kParts>& out) {
    Cursor cursor = Cursor::of(from, team);
    typename SumsOf<kCols>::Type sums;
    for (int base = from; base < to; base += 2)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = base + i;
        if (at >= to) break;
        dot_stream<kType>(raw[i], rows + cursor.super * kSuperBytes, args.of.room, lane, sums);
        if (at + 2 < to) fetch<kType>(i);
        end_sum(cursor, at, from, to, warp, sums, out);
        cursor.advance(team.supers);
      }
  }

  __device__ __forceinline__ void multiply(const char* rows, int warp,
                                           const Sums<kCols, kParts>& out) {
    // An empty run counts as zeros where a slot is a warp's.
    if (kParts == 1 && begin == end)
      put_sums(typename SumsOf<kCols>::Type{}, lane, out.slot(Cursor::of(begin, team).tile + warp));
    if (begin < middle) {
      multiply<BlockType::Q6_K>(begin, middle, rows, warp, out);
      if (middle < end) fetch_first<BlockType::Q4_K>(middle, end);
    }
    if (middle < end) multiply<BlockType::Q4_K>(middle, end, rows, warp, out);
  }
};

}  // namespace tessera::gpu
