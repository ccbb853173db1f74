// What a block of run.h's kernel is told of a layer: the constants of its shape, and which bytes it
// copies to shared memory, in which order. The host writes it once: finding out on the GPU would
// cost each block the instructions, which are bytes to fetch too.
//
// Work of a layer, by block (132 of them; the first 128 are workers, the last 4 helpers):
//   in      worker w: pairs of tiles of the projections, w, w + 128, w + 256; of the delta net
//           each helper 16 rows of alpha and beta
//   mix     the delta net: worker w 32 columns of head w / 4
//           attention: block u KV head u % 2 and span u / 2 (sizes.h), then those of u + 132
//           and so on; worker w 32 columns of head w / 8
//   out     worker w: tile w of the residual
//   route   worker w: experts 2w and 2w + 1; the first helper: the dense branch's scalar gate
//   hidden  worker w: a pair of tiles (32 activations), w % 16, of the expert chosen w / 16th; the
//           first 32 workers, by the warps that do not choose: tile w (16 activations) of the dense
//           branch
//   down    worker w: tile w of all nine branches
#pragma once

#include <cstdint>

#include "device/gpu/kernels/kernels.h"
#include "device/gpu/kernels/sizes.h"
#include "device/gpu/kernels/weight_planes.h"

namespace tessera::gpu::run {

// The shape.
inline constexpr int kCols = 2048, kSupers = kCols / kSuperCols;
inline constexpr int kHeads = 32, kDim = 128, kValues = kHeads * kDim;
inline constexpr int kMostChannels = 2 * kValues, kTaps = 4;
inline constexpr int kQueryHeads = 16, kKvHeads = 2, kHeadDim = 256, kMostTurns = 32;
inline constexpr int kGroupHeads = kQueryHeads / kKvHeads;  // that share keys and values
inline constexpr int kKeysAt = kQueryHeads * 2 * kHeadDim;  // of what is projected: a query, a gate
inline constexpr int kValuesAt = kKeysAt + kKvHeads * kHeadDim;
inline constexpr int kProjected = kValuesAt + kKvHeads * kHeadDim;
inline constexpr int kExperts = 256, kUsed = 8, kHidden = 512;
inline constexpr int kGroup = 32;  // columns rounded together: what one block makes at a time

// Shared memory for what blocks copy.
inline constexpr int kRingBytes = 172 * 1024;

// Of the projections behind an FFN of several rows (ffn_next.cuh) pairs of tiles a block at most.
inline constexpr int kMostNextPairs = 3;

// Who does what.
inline constexpr int kBlocks = 132, kWorkers = kCols / kTileRows;
inline constexpr int kHelpers = kBlocks - kWorkers;
inline constexpr int kGateRows = 2 * kHeads / kHelpers, kRowsTogether = 2;  // of alpha and beta
inline constexpr int kPairs = kHidden / kGroup;                             // of tiles, a branch
inline constexpr int kDenseTiles = kHidden / kTileRows;
static_assert(kHeads * kDim / kGroup == kWorkers && kUsed * kPairs == kWorkers);
static_assert(2 * kWorkers == kExperts && kHeads % kGateRows == 0);
static_assert(kDenseTiles <= kWorkers && kHidden == 2 * kSuperCols);
// Two or three pairs of tiles in a worker.
static_assert(kMostChannels + kValues <= 3 * kWorkers * kGroup &&
              2 * kValues >= 2 * kWorkers * kGroup && kProjected >= 2 * kWorkers * kGroup);
static_assert(kQueryHeads * kHeadDim == kValues && kProjected <= kMostChannels + kValues);

// A block's part of the delta net's state and constants, in bytes of its entry of the ring.
inline constexpr int kChannels = 2 * kDim + kGroup;  // of q, k and v
inline constexpr int kStateBytes = kGroup * kDim * 4;
inline constexpr int kTapsAt = kStateBytes;                      // f32 [4][kChannels]
inline constexpr int kPastAt = kTapsAt + kTaps * kChannels * 4;  // f32 [3][kChannels]
inline constexpr int kNormAt = kPastAt + (kTaps - 1) * kChannels * 4;
inline constexpr int kDecayAt = kNormAt + kGroup * 4;  // f32 a[4], dt_bias[4]: of heads around it
inline constexpr int kStateEntry = kDecayAt + 32;

// Keys or values of one head; those of a page are an entry, in which each sixteen tokens stand so
// far from the ones before that lanes of the products read from different banks.
inline constexpr int kTokenBytes = kHeadDim * 2, kSixteenBytes = 16 * kTokenBytes + 32;
constexpr int page_bytes(int tokens) {
  return (tokens + 15) / 16 * kSixteenBytes;
}

// Bytes of 16 rows x 256 columns.
constexpr int super_bytes(BlockType type) {
  return type == BlockType::Q4_K ? 2048 + 192 + 64 : 2048 + 1024 + 256 + 32;
}

// Where a piece's address counts from.
enum Base : std::uint32_t {
  kAbsolute = 0,
  kChosenExpert = 1,  // + which of the chosen
  kState = 16,        // of the row's sequence
  kPast = 17,         // + 0 .. 2: the rows of its ring before this one
  kBases = 20
};
// A run of bytes to an entry of the ring.
struct Piece {
  std::int64_t from;
  std::int32_t to;
  std::uint32_t size;  // base << 24 | bytes
};
// What comes together, and is waited for together: kMostTogether pieces at most.
inline constexpr int kMostTogether = 32;
struct alignas(16) Entry {
  std::int32_t bytes;     // 0: the last one
  std::int32_t first, n;  // pieces
  std::int32_t when;      // a When
};
enum When : std::int32_t {
  kAtOnce = 0,
  kChosen = 1,  // not before the experts are chosen
  kSpans = 2,   // no bytes of the plan's: the keys and values of the block's spans (run_ring.cuh)
};
// With every matrix in Q6_K, which has four planes: norms and plain rows 1 + 2, in 24, state 25,
// out 8, gate and up 16 and the dense branch's 12, down 32.
inline constexpr int kMostEntries = 24, kMostPieces = 120;
struct alignas(16) Plan {
  Entry entries[kMostEntries];
  Piece pieces[kMostPieces];
};

// Where value `column` of a row stands that warps take (await_eight()): a warp's look is at whole
// lines, 16 bytes a lane and load.
constexpr int row_place(unsigned column) {
  const unsigned load = column % 32 / 16 * 2 + column % 4 / 2;
  const unsigned lane = column % 256 / 32 * 4 + column % 16 / 4;
  return static_cast<int>(column / 256 * 256 + load * 64 + lane * 2 + column % 2);
}

// Blocks that share the router's columns, of several rows (project_route.cu).
inline constexpr int kRouteParts = 8;

// What passes between blocks, in bytes: f32 with numbers of 8 bytes each, records of 16
// (run_values.cuh).
struct PassedLayout {
  std::int64_t hidden;     // [2048], as row_place() says: a layer's input
  std::int64_t middle;     // the same: behind its mixer
  std::int64_t in;         // q, k, v; gate; alpha; beta. Or of each head query, gate; keys; values
  std::int64_t logits;     // [256] of the experts, then the dense branch's
  std::int64_t heads;      // records of gated heads: [worker][4]
  std::int64_t h;          // of hidden activations: [expert][pair][4]
  std::int64_t dense;      // [512], as row_place() says: those of the dense branch
  std::int64_t run;        // u32: the number of the next run
  std::int64_t rows_h;     // of several rows (ffn_together.cuh): [row][branch][pair][4]
  std::int64_t rows_run;   // u32: the number of the last launch with them
  std::int64_t rows_next;  // the rows that they leave (ffn_next.cuh): [row][group of columns][4]
  // The same of those that a step begins with (project_first.cu), under the number of the FFN that
  // comes next: so there is one between any two.
  std::int64_t rows_first;
  // Of several rows, too (project_route.cu): [row][2048], as row_place() says, behind the mixer.
  std::int64_t rows_middle;
  // Of the router's sums of two rows of weights, [unit][row of weights][row][part], and of each
  // row's squares, [team][row][part], what the team's blocks make of their columns.
  std::int64_t rows_parts, rows_squares;
  // Between two kernels, without numbers: those rows, rounded, and the dense branch's logits.
  std::int64_t rows_rounded, rows_gate;
  std::int64_t partials;  // of spans: [span][query head][256] of sum of values, top, weight
  std::int64_t bytes;     // without them
};
inline constexpr std::int64_t kSpanBytes = kQueryHeads * kHeadDim * 16;
constexpr PassedLayout passed_layout() {
  PassedLayout at{};
  const auto place = [&at](std::int64_t& offset, std::int64_t bytes) {
    offset = at.bytes;
    at.bytes += (bytes + 255) / 256 * 256;
  };
  place(at.hidden, kCols * 8);
  place(at.middle, kCols * 8);
  place(at.in, (kMostChannels + kValues + 2 * kHeads) * 8);
  place(at.logits, (kExperts + 1) * 8);
  place(at.heads, kWorkers * 4 * 16);
  place(at.h, kUsed * kPairs * 4 * 16);
  place(at.dense, kHidden * 8);
  place(at.run, 4);
  place(at.rows_h, kDecodeRows * (kUsed + 1) * kPairs * 4 * 16);
  place(at.rows_run, 4);
  place(at.rows_next, kDecodeRows * (kCols / kGroup) * 4 * 16);
  place(at.rows_first, kDecodeRows * (kCols / kGroup) * 4 * 16);
  place(at.rows_middle, kDecodeRows * kCols * 8);
  place(at.rows_parts, (kExperts + 2) * kDecodeRows * kRouteParts * 8);
  place(at.rows_squares, kWorkers / kRouteParts * kDecodeRows * kRouteParts * 8);
  place(at.rows_rounded, kDecodeRows * rounded_row_bytes(kCols));
  place(at.rows_gate, kDecodeRows * 4);
  at.partials = at.bytes;
  return at;
}

// The same for all blocks.
struct alignas(16) Layer {
  // Pairs of tiles of the projections in: those of each matrix and of the ones before it.
  std::int32_t in_ends[3];
  BlockType in[3];
  std::int32_t in_is_q4;  // 1: all of them are Q4_K
  std::int32_t attends;   // 0: the delta net

  // The delta net.
  std::int32_t channels, key_heads, grouped;
  float* state;
  std::int64_t slot_stride;
  float head_eps;

  // Attention.
  std::int32_t turns;
  const float *q_norm, *k_norm, *cos, *sin;
  std::byte* pool;  // the layer's place in page 0
  std::int64_t page_stride;
  const std::int32_t* page_table;  // the first row's sequence's
  std::int64_t table_stride;
  float scale;

  // The FFN.
  float weight_scale;
  std::int32_t normalize;
  const std::byte* const* table;
  std::int32_t* ids;
  float* weights;
  BlockType out, gate, up, down, dense_gate, dense_up, dense_down;
  float eps;
};
struct alignas(16) LayerPlans {
  Layer layer;
  Plan plans[kBlocks];
};

}  // namespace tessera::gpu::run
