// How a product of many super-blocks a multiprocessor (project_stream.cu) is cut, and where its
// sums and results lie.
//
// A team of kParts blocks takes every n-th unit of 16 rows (of gate and up, in the first rounds,
// two neighbours: they make a group of 32 columns, which the team rounds for the product behind).
// Each block has its part of the columns of all of them: teams of two, a cluster, differ by a unit
// at most, as single blocks would, but by half of one each, and a block brings half a row. A
// block's units' super-blocks, one unit after another, make one line, which the warps cut into runs
// of equal cost. So no warp waits for another before the end.
//
// Where a unit is cut, its warps' sums are added in the order of the warps, then the blocks': an
// order that the shapes and the number of blocks fix, the same for one row and for eight.
#pragma once

#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu {

inline constexpr int kStreamWarps = 16;
// Cost of a super-block.
inline constexpr int kSixCost = 3, kFourCost = 2;

// Of n things each team has `each`, and the first `more` teams have one more.
struct Dealt {
  int each, more;
  __device__ __forceinline__ int of(int team) const { return each + (team < more ? 1 : 0); }
};
// What the host reckons once, so that blocks begin without quotients.
struct StreamCut {
  int parts, teams, supers;  // blocks a team; of a block's part of a row
  Dealt units, six;          // of Q6_K: they come first
  unsigned inverse;  // 2^31 / supers + 1: quotients are exact while tiles * supers^2 < 2^31
  int plain_from;    // the block that has the first plain unit
};

struct StreamArgs {
  StreamCut cut;
  SuperArgs of;
  Activation activation;  // pairs: segments are gate and up, whose units go side by side
  int group_rounds;       // pairs: rounds of two neighbours, whose results are left rounded
  std::byte* out_rounded;
};

// --- A block's line of super-blocks ---

// The block's team, and its part of their columns, in super-blocks.
template <int kParts>
struct Team {
  int index, count, rank, begin, supers;
  unsigned inverse;
  __device__ __forceinline__ explicit Team(const StreamCut& cut)
      : index(static_cast<int>(blockIdx.x) / kParts), count(cut.teams),
        rank(static_cast<int>(blockIdx.x) % kParts), begin(kParts > 1 ? cut.supers * rank : 0),
        supers(cut.supers), inverse(cut.inverse) {}
};

// Its tiles: 16 rows of a matrix each; a pair's gate and up follow each other.
template <bool kPair, int kParts>
__device__ __forceinline__ Place tile_at(const StreamArgs& args, const Team<kParts>& team,
                                         int tile) {
  if constexpr (kPair) {
    const int i = tile / 2, alone = i - 2 * args.group_rounds;
    const int unit = alone < 0
                         ? 2 * (team.index + i / 2 * team.count) + i % 2
                         : team.index + (2 * args.group_rounds + alone) * team.count;
    return {&args.of.segments[tile % 2], unit};
  }
  return place_of(args.of, team.index + tile * team.count);
}

struct Line {
  int six, four;  // super-blocks of Q6_K, then of Q4_K
  // Where a warp's run begins; kStreamWarps: where the line ends.
  __device__ __forceinline__ int bound(int warp) const {
    const int at = (kSixCost * six + kFourCost * four) * warp / kStreamWarps;
    return at <= kSixCost * six ? at / kSixCost : six + (at - kSixCost * six) / kFourCost;
  }
};
template <bool kPair, int kParts>
__device__ __forceinline__ Line line_of(const StreamArgs& args, const Team<kParts>& team) {
  const int of_unit = team.supers * (kPair ? 2 : 1);
  const int units = args.cut.units.of(team.index), six = args.cut.six.of(team.index);
  return {six * of_unit, (units - six) * of_unit};
}

// A place in the line.
struct Cursor {
  int tile, super;
  template <int kParts>
  static __device__ __forceinline__ Cursor of(int at, const Team<kParts>& team) {
    const int tile =
        static_cast<int>(std::uint64_t{static_cast<unsigned>(at)} * team.inverse >> 31);
    return {tile, at - tile * team.supers};
  }
  __device__ __forceinline__ void advance(int supers) {
    if (++super < supers) return;
    super = 0;
    ++tile;
  }
};

// What the warps leave of the tiles: the sums of tile and warp in slot tile + warp, which along a
// line no other pair has. `given`: the tiles' sums that the team's other block has sent.
template <int kCols, int kParts>
struct Sums {
  static constexpr int kPlain = kStreamWarps * kPlainShare<kCols>;
  float *plain, *slots, *given;  // plain: the warps' shares of a plain unit
  int *first, *last;             // a tile's warps
  __device__ Sums(char* shared, int tiles)
      : plain(reinterpret_cast<float*>(shared)), slots(plain + kPlain),
        given(slots + (tiles + kStreamWarps) * kTileRows * kCols),
        first(reinterpret_cast<int*>(given + (kParts - 1) * tiles * kTileRows * kCols)),
        last(first + tiles) {}
  static int bytes(int tiles) {
    return (kPlain + (kParts * tiles + kStreamWarps) * kTileRows * kCols + 2 * tiles) * 4;
  }
  __device__ __forceinline__ float* slot(int tile, int warp) const {
    return slots + (tile + warp) * kTileRows * kCols;
  }
  // Of a row of the tile and a column: the block's, and the team's.
  __device__ __forceinline__ float share(int tile, int at) const {
    float sum = 0;
    for (int warp = first[tile]; warp <= last[tile]; ++warp) sum += slot(tile, warp)[at];
    return sum;
  }
  __device__ __forceinline__ float total(int tile, int at) const {
    float sum = share(tile, at);
    if constexpr (kParts > 1) sum += given[tile * kTileRows * kCols + at];
    return sum;
  }
};

// --- Results ---

// The blocks of a team take turns: of groups of 32 columns, then of tiles (pairs).
template <bool kPair, int kParts>
struct Results {
  int rank, groups;  // tiles that make groups
  __device__ __forceinline__ Results(const StreamArgs& args, const Team<kParts>& team)
      : rank(team.rank), groups(kPair ? 4 * args.group_rounds : 0) {}
  __device__ __forceinline__ bool has(int tile) const {
    const int turn = tile < groups ? tile / 4 : (tile - groups) / (kPair ? 2 : 1);
    return turn % kParts == rank;
  }
  // The tile, gate's of a pair, of the i-th result that is not in a group.
  __device__ __forceinline__ int tile(int i) const {
    return groups + (kParts * i + rank) * (kPair ? 2 : 1);
  }
};

// Where a thread's i-th result of the block goes; null: nowhere.
template <int kCols>
struct Target {
  float* to = nullptr;
  bool add = false;
  int tile = 0, at = 0;
  template <bool kPair, int kParts>
  __device__ __forceinline__ Target(const StreamArgs& args, const Team<kParts>& team,
                                    const Results<kPair, kParts>& results, int i, int tiles,
                                    int first, int n)
      : tile(results.tile(i / (kTileRows * kCols))), at(i % (kTileRows * kCols)) {
    if (tile >= tiles) return;
    const Place place = tile_at<kPair>(args, team, tile);
    const Segment& s = *place.segment;
    const int row = place.tile * kTileRows + at / kCols, column = at % kCols;
    if (row >= s.w.rows || column >= n) return;
    to = s.out + (first + column) * s.stride + row;
    add = s.add;
  }
};

}  // namespace tessera::gpu
