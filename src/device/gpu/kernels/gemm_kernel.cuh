// The kernel of the GEMM of long prompts (gemm.cuh).
//
// A block of two warpgroups computes 128 tokens by 256 weight rows, 64 tokens each; another warp
// brings 64 columns at a time of both through a ring of stages. Two blocks of a cluster have
// different tokens and the same weights, of which each fetches half for both: 32 bytes a clock and
// multiprocessor out of L2, 48 without. Blocks stay and take one tile after another, so the ring
// never runs dry between two.
//
// Floor: 2 * rows * cols * tokens operations at the tensor rate; a step of 64 columns is 1,024
// clocks.
#pragma once

#include "device/gpu/kernels/bulk_copy.cuh"
#include "device/gpu/kernels/gemm.cuh"
#include "device/gpu/kernels/shared_memory.cuh"
#include "device/gpu/kernels/tiles.cuh"

namespace tessera::gpu {
namespace {

constexpr int kSmallTile = 64;
constexpr int kReaders = 2;  // warpgroups
constexpr int kGroupThreads = 128;
constexpr int kThreads = kReaders * kGroupThreads + kWarp;
constexpr int kTokenBytes = kHalfTile * 2;
// Where one matrix may begin behind another.
template <int kTile>
constexpr int kBegin = kTile == kSmallTile ? kTileRows : kTile;
template <int kTile>
constexpr int kWeightBytes = kTile* kTileCols * 2;
template <int kTile>
constexpr int kStage = kTokenBytes + kWeightBytes<kTile>;
template <int kTile>
constexpr int kStages = 192 * 1024 / kStage<kTile>;
template <int kTile>
constexpr int kShared = kStages<kTile>* kStage<kTile> + 1024;

// One of the matrices side by side: rows first .. first + rows - 1 of the weights.
struct Target {
  float* out;
  std::int64_t stride;
  int first, rows;
  bool add;
};
// What one launch multiplies.
struct GemmArgs {
  HalfRows tokens, tokens_rest;
  HalfWeights weights, weights_rest;
  int rows = 0;       // tokens
  int row_tiles = 0;  // of weights
  int products = 1;   // 2 or 3: with the rest of the tokens, of the weights
  int n_targets = 0;
  Target targets[kMaxOutputs] = {};
  // Instead of targets: rows of gate and of up take turns by eight.
  HalfRows hidden;
  int hidden_cols = 0, hidden_cols_padded = 0;
  Activation activation{};
};

#ifdef TESSERA_GPU_WGMMA
// The tiles of a cluster, one after another: pairs of token tiles first, so that weights stream
// once.
struct Work {
  int pairs, tiles, step, tile;

  __device__ explicit Work(const GemmArgs& args)
      : pairs((args.rows + 2 * kHalfTileRows - 1) / (2 * kHalfTileRows)),
        tiles(pairs * args.row_tiles),
        step(static_cast<int>(gridDim.x) / 2),
        tile(static_cast<int>(blockIdx.x) / 2) {}
  __device__ bool more() const { return tile < tiles; }
  __device__ void next() { tile += step; }
  __device__ int row_tile() const { return tile / pairs; }
  __device__ int token_tile(int rank) const { return tile % pairs * 2 + rank; }
};

// A place in the ring.
template <int kTile>
struct Turn {
  int stage = 0;
  unsigned phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage < kStages<kTile>) return;
    stage = 0;
    phase ^= 1;
  }
};

// One thread asks for all copies, so nothing is counted anew in a step that can be counted before.
template <int kTile>
__device__ void bring(const GemmArgs& args, std::uint32_t stages, std::uint32_t full,
                      std::uint32_t empty) {
  constexpr int kHalf = kWeightBytes<kTile> / 2;
  const int rank = cluster_rank(), columns = args.tokens.col_tiles;
  const int token_tiles = (args.rows + kHalfTileRows - 1) / kHalfTileRows;
  Turn<kTile> turn;
  for (Work work(args); work.more(); work.next()) {
    const int token_tile = work.token_tile(rank);
    const bool there = token_tile < token_tiles;  // else sums that nobody stores
    for (int product = 0; product < args.products; ++product) {
      // Of plain weights the low parts come first.
      const HalfRows& tokens = product == 0 && args.products > 1 ? args.tokens_rest : args.tokens;
      const HalfWeights& weights =
          product == 1 && args.products > 2 ? args.weights_rest : args.weights;
      const __half* token_at = tokens.row(token_tile * kHalfTileRows);
      const __half* weight_at = weights.row(work.row_tile() * kTile, 0) + rank * (kHalf / 2);
      for (int column = 0; column < columns; ++column, turn.next()) {
        const std::uint32_t to = stages + turn.stage * kStage<kTile>;
        const std::uint32_t barrier = full + turn.stage * 8;
        barrier_wait(empty + turn.stage * 8, turn.phase ^ 1);
        barrier_expect(barrier, there ? kStage<kTile> : kWeightBytes<kTile>);
        if (there) bulk_copy(to, token_at, kTokenBytes, barrier);
        bulk_copy_both(to + kTokenBytes + rank * kHalf, weight_at, kHalf, barrier);
        token_at += kTokenBytes / 2;
        weight_at += kWeightBytes<kTile> / 2;
      }
    }
  }
}

// The sums of one tile. Who has waited for a stage's products gives it back to both blocks.
template <int kTile>
__device__ __forceinline__ void multiply(const GemmArgs& args, std::uint32_t stages,
                                         std::uint32_t full, std::uint32_t empty, Turn<kTile>& turn,
                                         float (&acc)[kTile / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const unsigned own = static_cast<unsigned>(threadIdx.x) / kGroupThreads * (kTokenBytes / 2);
  const auto give_back = [&](int stage) {
    if (thread % kWarp == 0 && thread / kWarp < 2)
      barrier_arrive(empty + stage * 8, thread / kWarp);
  };
  int before = -1;  // the stage of the step before
  // The factor of the low parts stands between two such loops. Inside of one, unrolled, ptxas (CUDA
  // 13.0) moved a copy of it ahead of the wait, and products of one step each were wrong.
  const auto add_steps = [&](int steps, bool fresh) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step, turn.next()) {
      barrier_wait(full + turn.stage * 8, turn.phase);
      const std::uint32_t at = stages + turn.stage * kStage<kTile>;
      const std::uint64_t a = swizzled_tile(at + own), b = swizzled_tile(at + kTokenBytes);
      group_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        group_multiply_shared<kTile>(acc, a + 2u * k, b + 2u * k, !fresh || step + k > 0);
      group_commit();
      group_wait<1>();
      if (before >= 0) give_back(before);
      before = turn.stage;
    }
  };
  const int columns = args.tokens.col_tiles;
  if (args.products > 1) {  // low parts first
    add_steps(columns * (args.products - 1), true);
    group_wait<0>();
    group_results<kTile>(acc);
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) acc[i] *= 1.0f / kRestScale;
    group_results<kTile>(acc);  // written before the fence that lets the products on
  }
  add_steps(columns, args.products == 1);
  group_wait<0>();
  group_results<kTile>(acc);
  give_back(before);
}

__device__ __forceinline__ void put_pair(float* at, float a, float b, bool add) {
  if (add)
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(a), "f"(b) : "memory");
  else
    *reinterpret_cast<float2*>(at) = make_float2(a, b);
}

// Sums of eight rows of weights and two tokens each.
template <int kGroups>
__device__ __forceinline__ void store_part(const Target& to, int rows, int within, int token,
                                           const float* acc) {
  const bool whole = within + 8 * (kGroups - 1) + 2 <= to.rows && to.stride % 2 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (token + 8 * half >= rows) break;
    float* at = to.out + (token + 8 * half) * to.stride + within;
    const float* sums = acc + 2 * half;
    if (whole) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) put_pair(at + 8 * j, sums[4 * j], sums[4 * j + 1], to.add);
    } else {
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (within + 8 * j + i < to.rows) put_sum(at + 8 * j + i, sums[4 * j + i], to.add);
    }
  }
}

// Targets begin with a tile, or with 16 rows of a small one.
template <int kTile>
__device__ __forceinline__ void store_targets(const GemmArgs& args, int row_tile, int token,
                                              int column, const float (&acc)[kTile / 2]) {
  constexpr int kPart = kBegin<kTile>;
  int target = 0;
#pragma unroll
  for (int part = 0; part < kTile / kPart; ++part) {
    const int row = row_tile * kTile + part * kPart;
    while (target + 1 < args.n_targets && row >= args.targets[target + 1].first) ++target;
    const Target& to = args.targets[target];
    store_part<kPart / 8>(to, args.rows, row - to.first + column, token, acc + part * kPart / 2);
  }
}

// Eight rows of gate, then the same of up: a thread has columns 8j + column and the next of both.
template <int kTile>
__device__ __forceinline__ void store_hidden(const GemmArgs& args, int row_tile, int token,
                                             int column, const float (&acc)[kTile / 2]) {
  const int first = row_tile * (kTile / 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = token + 8 * half;
    if (row >= args.rows) continue;
    __half* at = args.hidden.row(row) + first / kTileCols * kHalfTile;
#pragma unroll
    for (int j = 0; j < kTile / 16; ++j) {
      if (first + 8 * j >= args.hidden_cols_padded) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = 8 * j + column + i;
        const float value =
            quickly_activated(args.activation, acc[8 * j + 2 * half + i],
                              acc[8 * j + 4 + 2 * half + i]);
        const int piece = j % 8 / 2 * 2 + i;
        at[j / 8 * kHalfTile + (piece ^ row_swizzle(row)) * kPieceHalves + j % 2 * 4 + column / 2] =
            to_half(first + c < args.hidden_cols ? value : 0.0f);
      }
    }
  }
}
#endif

template <int kTile, bool kHidden>
__global__ void TESSERA_CLUSTER(2) __launch_bounds__(kThreads, 1)
    gemm_kernel(const TESSERA_GRID_CONSTANT GemmArgs args) {
#ifdef TESSERA_GPU_WGMMA
  TESSERA_DYNAMIC_SHARED(char, raw);
  __shared__ std::uint64_t barriers[2][kStages<kTile>];
  const std::uint32_t stages = (shared_address(raw) + 1023) / 1024 * 1024;
  const std::uint32_t full = shared_address(barriers[0]), empty = shared_address(barriers[1]);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages<kTile>; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, 2 * kReaders);  // of both blocks
    }
    barriers_ready();
  }
  cluster_sync();
  chain_wait();
  chain_trigger();
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (warp == kReaders * kGroupThreads / kWarp) {
    if (lane == 0) bring<kTile>(args, stages, full, empty);
    __syncwarp();
  } else {
    const int rank = cluster_rank();
    Turn<kTile> turn;
    for (Work work(args); work.more(); work.next()) {
      float acc[kTile / 2];
      multiply<kTile>(args, stages, full, empty, turn, acc);
      const int token = work.token_tile(rank) * kHalfTileRows + warp * 16 + lane / 4;
      if constexpr (kHidden)
        store_hidden<kTile>(args, work.row_tile(), token, lane % 4 * 2, acc);
      else
        store_targets<kTile>(args, work.row_tile(), token, lane % 4 * 2, acc);
    }
  }
  cluster_sync();  // nobody's barriers go while the other block may arrive there
#elif defined(TESSERA_GPU_PTX)
  __trap();  // has_gemm() says no
#endif
}

}  // namespace
}  // namespace tessera::gpu
