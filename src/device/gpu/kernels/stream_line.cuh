// How a product of many super-blocks a multiprocessor (project_stream.cu) is cut, and where its
// sums and results lie.
//
// A block takes every gridDim.x-th unit of 16 rows (of gate and up, in the first rounds, two
// neighbours: they make a group of 32 columns, which the block rounds for the product behind). Its
// units' super-blocks, one unit after another, make one line, which the warps cut into runs of
// equal cost. So no warp waits for another before the end, and blocks differ by a unit at most.
// Where a unit is cut, its warps' sums are added in the order of the warps: an order that the
// shapes and the number of blocks fix, the same for one row and for eight.
#pragma once

#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu {

inline constexpr int kStreamWarps = 16;
// Cost of a super-block.
inline constexpr int kSixCost = 3, kFourCost = 2;

struct StreamArgs {
  SuperArgs of;
  int six_units;          // of Q6_K: they come first
  Activation activation;  // pairs: segments are gate and up, whose units go side by side
  int group_rounds;       // pairs: rounds of two neighbours, whose results are left rounded
  std::byte* out_rounded;
};

// --- A block's line of super-blocks ---

// Its tiles: 16 rows of a matrix each; a pair's gate and up follow each other.
template <bool kPair>
__device__ __forceinline__ Place tile_at(const StreamArgs& args, int tile) {
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  if constexpr (kPair) {
    const int i = tile / 2, alone = i - 2 * args.group_rounds;
    const int unit = alone < 0 ? 2 * (block + i / 2 * blocks) + i % 2
                               : 2 * args.group_rounds * blocks + block + alone * blocks;
    return {&args.of.segments[tile % 2], unit};
  }
  return place_of(args.of, block + tile * blocks);
}

__host__ __device__ constexpr int units_of_block(int units, int block, int blocks) {
  return units <= block ? 0 : (units - block + blocks - 1) / blocks;
}

struct Line {
  int six, four;  // super-blocks of Q6_K, then of Q4_K
  // Where a warp's run begins; kStreamWarps: where the line ends.
  __device__ __forceinline__ int bound(int warp) const {
    const int at = (kSixCost * six + kFourCost * four) * warp / kStreamWarps;
    return at <= kSixCost * six ? at / kSixCost : six + (at - kSixCost * six) / kFourCost;
  }
};
template <bool kPair>
__device__ __forceinline__ Line line_of(const StreamArgs& args) {
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int of_unit = args.of.supers * (kPair ? 2 : 1);
  const int units = units_of_block(args.of.units, block, blocks);
  const int six = units_of_block(args.six_units, block, blocks);
  return {six * of_unit, (units - six) * of_unit};
}

// A place in the line.
struct Cursor {
  int tile, super;
  __device__ __forceinline__ void advance(int supers) {
    if (++super < supers) return;
    super = 0;
    ++tile;
  }
};

// What the warps leave of the tiles: the sums of tile and warp in slot tile + warp, which along a
// line no other pair has.
template <int kCols>
struct Sums {
  float* slots;
  int *first, *last;  // a tile's warps
  __device__ Sums(char* shared, int tiles)
      : slots(reinterpret_cast<float*>(shared)),
        first(reinterpret_cast<int*>(slots + (tiles + kStreamWarps) * kTileRows * kCols)),
        last(first + tiles) {}
  static int bytes(int tiles) {
    return (tiles + kStreamWarps) * kTileRows * kCols * 4 + 2 * tiles * 4;
  }
  __device__ __forceinline__ float* slot(int tile, int warp) const {
    return slots + (tile + warp) * kTileRows * kCols;
  }
  // Of a row of the tile and a column.
  __device__ __forceinline__ float total(int tile, int at) const {
    float sum = 0;
    for (int warp = first[tile]; warp <= last[tile]; ++warp) sum += slot(tile, warp)[at];
    return sum;
  }
};

// Where this thread's i-th result of the block goes; null: nowhere.
template <int kCols, bool kPair>
struct Target {
  float* to = nullptr;
  bool add = false;
  int tile = 0, at = 0;
  __device__ __forceinline__ Target(const StreamArgs& args, int i, int tiles, int first, int n) {
    tile = i / (kTileRows * kCols) * (kPair ? 2 : 1);
    at = i % (kTileRows * kCols);
    if (tile >= tiles) return;
    const Place place = tile_at<kPair>(args, tile);
    const Segment& s = *place.segment;
    const int row = place.tile * kTileRows + at / kCols, column = at % kCols;
    if (row >= s.w.rows || column >= n) return;
    to = s.out + (first + column) * s.stride + row;
    add = s.add;
  }
};

}  // namespace tessera::gpu
