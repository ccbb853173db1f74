// What a block of dense_run.h's kernel is told: the shape's limits, which bytes it copies in which
// order, and which warp multiplies them. The host writes it once a kind of layer.
//
// Blocks' work of a layer, in stages, all by tiles of 16 rows (block b of 132):
//   in    tiles b, b + 132, ... of the projections into the mixer
//   out   the same of the residual, whose columns stay in the block's shared memory
//   up    groups of two neighbouring tiles of gate and up, b, b + 132, ...: 32 columns, which the
//         block rounds; what is left of whole rounds by single tiles, to the last blocks, which
//         have fewer of in
//   down  the tiles of out; those behind the last whole round, where they are so few, go halved:
//         half a row by a block each, one of which gives the other its sums
//
// A stage's row comes in parts. Products with the first one, which blocks have made in their first
// tiles, go ahead for as many tiles as keep the block busy until the rest has come.
#pragma once

#include <cstdint>

#include "device/gpu/kernels/dense_run.h"
#include "device/gpu/kernels/sizes.h"

namespace tessera::gpu::dense_run {

inline constexpr int kBlocks = 132;
inline constexpr int kProductWarps = 11, kRowWarps = 8;

// The delta net's heads, whose columns two blocks share.
inline constexpr int kDim = 128, kTaps = 4, kHalf = kDim / 2;
// Attention's heads, of kMostHeadDim columns or of half as many, and how many of them share keys
// and values at most.
inline constexpr int kMostHeadDim = 256, kMostGroup = 8;

// A step of half a head in the log: keys, what they go to each column with, the decay; of all of
// them how many there are.
struct alignas(16) LoggedStep {
  float keys[kDim], delta[kHalf], decay;
};
struct alignas(16) Log {
  LoggedStep steps[kMostLogged];
  std::int32_t n;
};

// Super-blocks of a row at most: of the residual, of the mixer's columns and of the FFN's.
inline constexpr int kMostEmbd = 20, kMostMixed = 68, kMostHidden = 68, kLeastSupers = 16;
// Tiles a block: of out and down, of gate and up, of in.
inline constexpr int kMostOut = 3, kMostUp = 18, kMostIn = 18;
// A warp's turn: super-blocks whose sum is one number, in every product of so many columns.
inline constexpr int kTogether = 2;
inline constexpr int kOutSums = kMostOut * (kMostHidden / kTogether);
inline constexpr int kUpSums = kMostUp * (kMostEmbd / kTogether);  // in's, too
static_assert(kMostIn <= kMostUp);
// An entry of the ring: so many super-blocks of a tile at most, of Q4_K and of Q6_K.
inline constexpr int kMostFour = 12, kMostSix = 8;
inline constexpr int kMostTurns = kMostFour / kTogether;  // of an entry
// Barriers that count sums, of a tile or a group each.
inline constexpr int kOutCounter = 0, kDownCounter = kMostOut, kUpCounter = 2 * kMostOut;
inline constexpr int kInCounter = kUpCounter + kMostUp, kCounters = kInCounter + kMostIn;
// Arrivals until all sums of a tile, or of a group, are there: the last one stands for those that
// a tile of few lacks.
inline constexpr int kTileArrivals = 64;
static_assert(kMostHidden / kTogether <= kTileArrivals &&
              4 * kMostEmbd / kTogether <= kTileArrivals);
// Tiles whose first part goes ahead.
inline constexpr int kInAhead = 6, kUpAhead = 13;

enum Stage : std::uint8_t { kIn, kOut, kUp, kDown };
// Of a tile of the residual: what the block has of its columns.
enum Columns : std::uint8_t { kAllColumns, kFirstHalf, kSecondHalf };
enum MatrixIndex : std::uint8_t { kIn0, kIn1, kIn2, kOutMatrix, kGate, kUpMatrix, kDownMatrix };
inline constexpr int kMatrices = 7;

// Parts of the stages' rows. Of the residual two; of the mixer's columns and the FFN's as many as
// there are, the former small, since products wait for them with nothing else to do: a part is what
// the row warps round in one turn.
inline constexpr int kOutPart = kRowWarps, kDownPart = 12;
static_assert(kOutPart % kTogether == 0 && kDownPart % kTogether == 0);
inline constexpr int kPartIn = 0, kPartUp = 2, kPartOut = 4;
inline constexpr int kPartDown = kPartOut + (kMostMixed + kOutPart - 1) / kOutPart;
inline constexpr int kPartsOfRows = kPartDown + (kMostHidden + kDownPart - 1) / kDownPart;
// The super-blocks of the residual's first part: what blocks make in their first two tiles (in), or
// in the first one, behind which the next is soon there (gate and up).
TESSERA_HOST_DEVICE constexpr int first_part(int part, int supers) {
  const int made = (part == kPartIn ? 2 : 1) * kBlocks * kTileRows / kSuperCols;
  return supers < made ? supers : made;
}

// What an entry of the ring is: `supers` super-blocks of a matrix from `at` on.
struct alignas(16) Feed {
  std::uint32_t at, bytes;
  std::uint16_t supers;
  std::uint8_t matrix, six;
};
// What is multiplied with it.
struct alignas(16) Work {
  std::uint16_t row;  // of the rounded super-blocks
  std::uint16_t sum;  // of the sums
  std::uint8_t stage, part;
  std::uint8_t counter;  // the barrier of its tile's, or group's, sums
  std::uint8_t ends;     // of a tile's last entry: the last turn's arrivals, else 0
  std::uint16_t tile;
  std::uint8_t local, six;  // which of the block's tiles
  std::uint8_t supers, turns;
  std::uint8_t columns;
};
inline constexpr int kMostEntries = 128, kMostItems = 48;
struct alignas(16) Schedule {
  std::int32_t n;  // entries
  std::int32_t pad[3];
  Feed feed[kMostEntries];
  Work work[kMostEntries];
  // Of a warp, in order: turn << 8 | entry. Ends with kNoItem.
  std::uint16_t items[kProductWarps][kMostItems];
};
inline constexpr std::uint16_t kNoItem = 0xffff;

struct alignas(16) Layer {
  std::uint64_t planes[kMatrices][4];  // addresses of a matrix's planes, in the order of the ring
  const float *norm, *ffn_norm;
  float eps, head_eps;
  std::int32_t attends;           // 0: the delta net
  std::int32_t key_heads, heads;  // of either
  // The delta net; alpha and beta are plain rows.
  std::int32_t channels, grouped;
  BlockType alpha_type, beta_type;
  const std::byte *alpha, *beta;
  const float *taps, *a, *dt_bias, *head_norm;
  float* state;
  std::int64_t slot_stride;
  std::int32_t log;  // its number among the delta nets that have a place: log_of()
  // Attention. Of what is projected a query's head is query_stride rows, of which the second half
  // is its gate where it is gated.
  std::int32_t head_dim, query_stride, gated, keys_at, values_at, turns;
  float scale;
  const float *q_norm, *k_norm, *cos, *sin;
  std::byte* pool;  // the layer's place in page 0
  std::int64_t page_stride;
  const std::int32_t* page_table;        // of the first sequence
  std::int32_t schedule, next_schedule;  // its own, and that of the layer in the next place
};

// The same for all layers.
struct alignas(16) Shape {
  std::int32_t embd, mixed, hidden;  // super-blocks of a row
  std::int32_t up_rounds;            // of groups
  std::int32_t arrivals[kPartsOfRows];
  friend bool operator==(const Shape&, const Shape&) = default;
};

inline constexpr int kMostSchedules = 8;
// The plans: the shape, layers, then schedules [kMostSchedules][kBlocks].
constexpr std::int64_t layers_at() {
  return (static_cast<std::int64_t>(sizeof(Shape)) + 255) / 256 * 256;
}
constexpr std::int64_t schedules_at(int layers) {
  return layers_at() + (layers * static_cast<std::int64_t>(sizeof(Layer)) + 255) / 256 * 256;
}

// What passes between blocks, in bytes (run_values.cuh).
struct PassedLayout {
  std::int64_t residual;  // f32 behind down, as run::row_place() says
  std::int64_t middle;    // the same behind out
  std::int64_t in;        // f32: what the mixer reads
  std::int64_t heads;     // records of its heads: [group of 32][4]
  std::int64_t hidden;    // of the FFN's columns
  std::int64_t left;      // f32: those of single tiles, as row_place() says
  std::int64_t halves;    // f32: sums of tiles' first halves: [kBlocks / 2][16]
  std::int64_t run;       // u32: the number of the next run
  std::int64_t partials;  // of spans: [span][head][head_dim] of sum of values, top, weight
  std::int64_t bytes;     // without them
};
constexpr PassedLayout passed_layout() {
  PassedLayout at{};
  const auto place = [&at](std::int64_t& offset, std::int64_t bytes) {
    offset = at.bytes;
    at.bytes += (bytes + 255) / 256 * 256;
  };
  constexpr std::int64_t kColumns = kSuperCols;
  place(at.residual, kMostEmbd * kColumns * 8);
  place(at.middle, kMostEmbd * kColumns * 8);
  place(at.in, std::int64_t{kBlocks} * kMostIn * kTileRows * 8);
  place(at.heads, kMostMixed * 8 * 4 * 16);
  place(at.hidden, kMostHidden * 8 * 4 * 16);
  place(at.left, kMostHidden * kColumns * 8);
  place(at.halves, std::int64_t{kBlocks / 2} * kTileRows * 8);
  place(at.run, 4);
  at.partials = at.bytes;
  return at;
}

}  // namespace tessera::gpu::dense_run
