// A row tile's weights on their way to the warp that multiplies them, a pair of column tiles at a
// time.
//
// On Hopper through shared memory: each warp has places there for two or three pairs, which it
// fills by asynchronous copies one or two pairs ahead. With the next tile alone on its way, to
// registers, which hold no more beside the sums, warps stood for a quarter of their time at its
// first use (docs/gpu-prompts.md). Elsewhere by registers.
//
//   WeightFeed<kType, kMost, false> weights(w, row_tile, 1, behind);    // the tokens' stages
//   TokenRing<kMost> ring(shared, tokens, n, kTileStages, weights);     // tiles.cuh
//   for (int tile = 0; tile < n; tile += 2) {
//     const int at = ring.turn(weights);           // waits for both, asks for what comes later
//     multiply(weights.first(), ...);
//     const auto& second = weights.second();
//     if (tile + 1 < n) multiply(second, ...);
//   }
#pragma once

#include "device/gpu/kernels/formats.cuh"
#include "device/gpu/kernels/shared_memory.cuh"
#include "device/gpu/kernels/sizes.h"
#include "device/gpu/kernels/warpgroup.cuh"

namespace tessera::gpu {

// Of a block whose tiles have up to kMost tokens: its warps, and how many such blocks stand on a
// multiprocessor.
template <int kMost>
inline constexpr int kTileWarps = kMost < kTileTokens ? 8 : 16;
template <int kMost>
inline constexpr int kTileThreads = kTileWarps<kMost>* kWarp;
template <int kMost>
inline constexpr int kTileBlocks = kMost < kNarrowTokens ? 3 : kMost < kTileTokens ? 2 : 1;
// Tiles of tokens in shared memory, by pairs: one on its way, one that is multiplied, and the one
// before, which the last products may still read.
inline constexpr int kTileStages = 6;
template <int kMost>
inline constexpr int kStageBytes = kMost* kTileCols * 2;
// What a block may take where all of them stand on a Hopper multiprocessor, less what aligns it,
// what the driver takes, and a list of its pairs.
template <int kMost>
inline constexpr int kTileRoom = 228 * 1024 / kTileBlocks<kMost> / 1024 * 1024 - 3 * 1024;

// A tile in shared memory: its planes one behind the other, by pieces of 16 bytes.
template <BlockType kType>
struct TilePieces {
  using T = Tile<kType>;
  static constexpr int kExtra = T::kQuantBytes / 16;  // where each plane's begin
  static constexpr int kScales = kExtra + T::kExtraBytes / 16;
  static constexpr int kSupers = kScales + T::kScaleBytes / 16;
  static constexpr int kAll = kSupers + (T::kPairSuper ? 4 : T::kSingleSuper ? 2 : 0);
  static constexpr int kBytes = kAll * 16;
};

template <BlockType kType, int kMost>
inline constexpr int kPairBytes = kTileWarps<kMost> * 2 * TilePieces<kType>::kBytes;
// Pairs that a warp has room for, three at most.
template <BlockType kType, int kMost>
inline constexpr int kWeightPlaces =
    kTileRoom<kMost> - kTileStages * kStageBytes<kMost> < 3 * kPairBytes<kType, kMost> ? 2 : 3;
template <BlockType kType, int kMost>
inline constexpr int kFeedBytes = kWeightPlaces<kType, kMost>* kPairBytes<kType, kMost>;

// The row tile that a warp multiplies behind `row_tile`: the block's warps take turns. Past the
// matrix it goes on with its last one, and stores nothing.
template <int kMost>
__device__ __forceinline__ int next_row_tile(const Planes& w, int row_tile) {
  return row_tile + kTileWarps<kMost> < w.row_tiles ? row_tile + kTileWarps<kMost> : row_tile;
}

// By way of shared memory.
template <BlockType kType, int kMost, bool kMany>
class WeightRing {
  using T = Tile<kType>;
  using P = TilePieces<kType>;
  static constexpr int kPlaces = kWeightPlaces<kType, kMost>;
  static_assert(kTileStages * kStageBytes<kMost> + kFeedBytes<kType, kMost> <= kTileRoom<kMost>);
  static constexpr int kEach = (P::kAll + kWarp - 1) / kWarp;  // of a tile's pieces, a lane

 public:
  // Groups of copies that may be under way when a pair is multiplied: those of later weights.
  static constexpr int kPending = kPlaces - 2;

  __device__ WeightRing(const Planes& w, int row_tile, int row_tiles, char* shared)
      : w_(w), row_tile_(row_tile), left_(row_tiles) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    shared_ = shared + warp * (2 * P::kBytes);
    begin_row();
  }
  // The first pair, ahead of the first tokens; and the second behind them.
  __device__ __forceinline__ void begin() {
    ask();
  }
  __device__ __forceinline__ void begin_behind() {
    if constexpr (kPlaces == 3) ask();
  }
  // Ahead of the wait for a pair's copies.
  __device__ __forceinline__ void early() {}
  // Behind it and a barrier of the warp: takes the pair, and asks for a later one in the place of
  // the one before.
  __device__ __forceinline__ void turn() {
    ask();
    const char* at = place(taken_);
    step(taken_);
    read(even_, at);
    read(odd_, at + P::kBytes);
  }
  __device__ __forceinline__ const T& first() {
    return even_;
  }
  __device__ __forceinline__ const T& second() {
    return odd_;
  }

 private:
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % kWarp;
  }
  __device__ __forceinline__ char* place(int i) const {
    return shared_ + i * kPairBytes<kType, kMost>;
  }
  __device__ __forceinline__ static void step(int& place) {
    place = place + 1 == kPlaces ? 0 : place + 1;
  }
  // Where this lane's pieces of the row tile's column tile 0 stand.
  __device__ __forceinline__ void begin_row() {
    col_ = 0;
    const std::int64_t tile = static_cast<std::int64_t>(row_tile_) * w_.col_tiles;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int piece = lane() + i * kWarp;
      const auto at = [&](std::int64_t plane, std::int64_t row, int bytes, int first) {
        from_[i] = w_.data + plane + row * bytes + (piece - first) * 16;
        step_[i] = bytes;
        shift_[i] = 0;
      };
      if (piece < P::kExtra)
        at(0, tile, T::kQuantBytes, 0);
      else if (piece < P::kScales)
        at(w_.extra, tile, T::kExtraBytes, P::kExtra);
      else if (piece < P::kSupers)
        at(w_.scales, tile, T::kScaleBytes, P::kScales);
      else {
        at(w_.supers, std::int64_t{row_tile_} * w_.supers_a_row, (P::kAll - P::kSupers) * 16,
           P::kSupers);
        shift_[i] = 2;  // once for four column tiles
      }
    }
  }
  __device__ __forceinline__ void ask() {
    char* to = place(free_) + lane() * 16;
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (col_ + t < w_.col_tiles &&
            ((i + 1) * kWarp <= P::kAll || lane() + i * kWarp < P::kAll))
          copy_async(to + t * P::kBytes + i * kWarp * 16,
                     from_[i] + (static_cast<unsigned>(col_ + t) >> shift_[i]) * step_[i], true);
    col_ += 2;
    if constexpr (kMany) {
      if (col_ >= w_.col_tiles && left_ > 1) {
        --left_;
        row_tile_ = next_row_tile<kMost>(w_, row_tile_);
        begin_row();
      }
    }
    step(free_);
    copy_commit();
  }
  __device__ __forceinline__ static void read(T& tile, const char* at) {
    const auto* bytes = reinterpret_cast<const std::byte*>(at);
    tile.load_here({bytes, bytes + P::kExtra * 16, bytes + P::kScales * 16,
                    bytes + P::kSupers * 16},
                   lane());
  }

  const Planes& w_;
  char* shared_;
  const std::byte* from_[kEach];
  unsigned step_[kEach], shift_[kEach];
  int row_tile_, left_;  // the one whose tiles are asked for, and such ones
  int col_ = 0;          // the next pair's first
  int free_ = 0, taken_ = 0;
  T even_, odd_;
};

// By way of registers: the next tile while one is multiplied.
template <BlockType kType, int kMost, bool kMany>
class WeightsAhead {
  using T = Tile<kType>;

 public:
  static constexpr int kPending = 0;

  __device__ WeightsAhead(const Planes& w, int row_tile, int row_tiles, char*)
      : w_(w), from_(T::at(w, row_tile, lane())), row_tile_(row_tile), left_(row_tiles) {}
  __device__ __forceinline__ void begin() {
    even_.load(from_, 0);
  }
  __device__ __forceinline__ void begin_behind() {}
  __device__ __forceinline__ void early() {
    if (col_ + 1 < w_.col_tiles) odd_.load(from_, col_ + 1);
  }
  __device__ __forceinline__ void turn() {}
  __device__ __forceinline__ const T& first() {
    return even_;
  }
  // The first one is multiplied: its place is the next pair's.
  __device__ __forceinline__ const T& second() {
    col_ += 2;
    if (kMany && col_ >= w_.col_tiles && left_ > 1) {
      --left_;
      const int next = next_row_tile<kMost>(w_, row_tile_);
      from_.skip(w_, next - row_tile_);
      row_tile_ = next;
      col_ = 0;
    }
    if (col_ < w_.col_tiles) even_.load(from_, col_);
    return odd_;
  }

 private:
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % kWarp;
  }

  const Planes& w_;
  typename T::At from_;
  int row_tile_, left_, col_ = 0;
  T even_, odd_;
};

// kMany: of several row tiles, one after another.
#ifdef TESSERA_GPU_WGMMA
inline constexpr bool kHasWeightRing = true;
template <BlockType kType, int kMost, bool kMany>
using WeightFeed = WeightRing<kType, kMost, kMany>;
#else
inline constexpr bool kHasWeightRing = false;
template <BlockType kType, int kMost, bool kMany>
using WeightFeed = WeightsAhead<kType, kMost, kMany>;
#endif

}  // namespace tessera::gpu
