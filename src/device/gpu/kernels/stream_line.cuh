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
// In a team of two a unit's columns go in pieces of kPiece super-blocks, whose sums are added in
// their order, then the blocks': an order that the shapes alone fix, the same for one row and for
// eight, whoever has a piece, and that of dense_run.h. A block by itself (stream_parts()) keeps one
// sum of what a warp has of a unit, which takes less room: of those the order depends on the number
// of blocks, too.
#pragma once

#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu {

inline constexpr int kStreamWarps = 16;
// Cost of a super-block.
inline constexpr int kSixCost = 3, kFourCost = 2;
// Super-blocks of a piece, which one warp multiplies whole.
template <int kParts>
inline constexpr int kPiece = kParts > 1 ? 2 : 1;

// Of n things each team has `each`, and the first `more` teams have one more.
struct Dealt {
  int each, more;
  __device__ __forceinline__ int of(int team) const { return each + (team < more ? 1 : 0); }
};
// What the host reckons once, so that blocks begin without quotients.
struct StreamCut {
  int parts, teams, supers;  // blocks a team; of a block's part of a row
  Dealt units, six;          // of Q6_K: they come first
  int pieces;  // of a unit in a block
  // 2^31 / n + 1 of supers and of pieces: quotients are exact while tiles * n^2 < 2^31.
  unsigned inverse, pieces_inverse;
  int plain_from;  // the block that has the first plain unit
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

__device__ __forceinline__ int quotient(int of, unsigned inverse) {
  return static_cast<int>(std::uint64_t{static_cast<unsigned>(of)} * inverse >> 31);
}

template <int kParts>
struct Line {
  int six, four;  // tiles of Q6_K, then of Q4_K
  const StreamCut& cut;
  // The super-block at which a warp's run begins; kStreamWarps: where the line ends.
  __device__ __forceinline__ int bound(int warp) const {
    const int sixes = six * cut.pieces, fours = four * cut.pieces;
    const int at = (kSixCost * sixes + kFourCost * fours) * warp / kStreamWarps;
    const int piece =
        at <= kSixCost * sixes ? at / kSixCost : sixes + (at - kSixCost * sixes) / kFourCost;
    const int tile = quotient(piece, cut.pieces_inverse);
    return tile * cut.supers + (piece - tile * cut.pieces) * kPiece<kParts>;
  }
};
template <bool kPair, int kParts>
__device__ __forceinline__ Line<kParts> line_of(const StreamArgs& args, const Team<kParts>& team) {
  const int units = args.cut.units.of(team.index), six = args.cut.six.of(team.index);
  constexpr int kTiles = kPair ? 2 : 1;
  return {six * kTiles, (units - six) * kTiles, args.cut};
}

// A place in the line.
struct Cursor {
  int tile, super;
  template <int kParts>
  static __device__ __forceinline__ Cursor of(int at, const Team<kParts>& team) {
    const int tile = quotient(at, team.inverse);
    return {tile, at - tile * team.supers};
  }
  __device__ __forceinline__ void advance(int supers) {
    if (++super < supers) return;
    super = 0;
    ++tile;
  }
};

// What the warps leave of the tiles. `given`: the tiles' sums that the team's other block has sent.
template <int kCols, int kParts>
struct Sums {
  static constexpr int kPlain = kStreamWarps * kPlainShare<kCols>, kEach = kTileRows * kCols;
  float *plain, *sums, *given;  // plain: the warps' shares of a plain unit
  int pieces;
  int *first, *last;  // a block by itself: a tile's warps
  __device__ Sums(char* shared, int tiles, int of_tile)
      : plain(reinterpret_cast<float*>(shared)), sums(plain + kPlain),
        given(sums + slots(tiles, of_tile) * kEach), pieces(of_tile),
        first(reinterpret_cast<int*>(given)), last(first + tiles) {}
  // A piece's sum in slot tile * pieces + piece; of a block by itself the sum of tile and warp in
  // slot tile + warp, which along a line no other pair has.
  static __host__ __device__ constexpr int slots(int tiles, int of_tile) {
    return kParts > 1 ? tiles * of_tile : tiles + kStreamWarps;
  }
  static int bytes(int tiles, int of_tile) {
    const int behind = kParts > 1 ? tiles * kEach : 2 * tiles;
    return (kPlain + slots(tiles, of_tile) * kEach + behind) * 4;
  }
  __device__ __forceinline__ float* slot(int index) const { return sums + index * kEach; }
  // Of a row of the tile and a column: the block's, and the team's.
  __device__ __forceinline__ float share(int tile, int at) const {
    const int from = kParts > 1 ? tile * pieces : tile + first[tile];
    const int to = kParts > 1 ? from + pieces : tile + last[tile] + 1;
    float sum = 0;
    for (int i = from; i < to; ++i) sum += slot(i)[at];
    return sum;
  }
  __device__ __forceinline__ float total(int tile, int at) const {
    float sum = share(tile, at);
    if constexpr (kParts > 1) sum += given[tile * kEach + at];
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
