// Branches of the FFN through tensor-core tiles (tiles.cuh).
//
// gate and up: the first half of a block's warps take rows of gate, the others the same rows of up;
// they meet in shared memory. Floor for 4,096 rows, 8 experts of 512 and the shared one on 2048
// columns: 232 GFLOP a layer with down, 0.3 ms at 790 TFLOP/s.
#include "device/gpu/kernels/ffn_tiles.cuh"

#include <algorithm>

namespace tessera::gpu {
namespace {

// Row tiles of gate (and of up) a block.
template <int kMost>
constexpr int kHiddenTiles = kTileWarps<kMost> / 2;

// This block's tokens and matrices; false where there is nothing to do.
template <int kColumns>
__device__ __forceinline__ bool find_work(const TileProduct& args, Planes& a, Planes& b,
                                          ExpertTile& work) {
  a = args.a;
  b = args.b;
  if (args.tiles == nullptr) {
    work.first = static_cast<int>(blockIdx.y) * kColumns;
    work.n = min(kColumns, args.rows - work.first);
    return true;
  }
  if (static_cast<int>(blockIdx.y) >= *args.n_tiles) return false;
  work = args.tiles[blockIdx.y];
  const std::byte* expert = args.table[work.expert];
  a.data = expert + args.a_offset;
  b.data = expert + args.b_offset;
  return true;
}

// What a warp's sums i of all lanes are spread by in shared memory, so that neither those who put
// them there nor those who take a column for each of 32 tokens meet in a bank.
__device__ __forceinline__ unsigned sums_spread(unsigned i) {
  return (i / 4 % 4 * 2 + i % 2) * 4;
}

// Eight columns of a token's hidden activations, a piece of its row: every other one of 16, whose
// sums of gate and of up stand at `gate` and `up`. Those past the matrix, from `rows` on, are zero.
__device__ __forceinline__ uint4 hidden_piece(Activation kind, unsigned parity, unsigned token,
                                              unsigned rows, const float* gate, const float* up) {
  constexpr unsigned kSumsApart = 4 * kWarp;  // of eight tokens
  const unsigned sum = token / 8 * 4 + token % 2;
  const unsigned at = token / 8 * kSumsApart + token % 2 * kWarp;
  const unsigned spread = token % 8 / 2 + parity * 4;
  float g[8], u[8];
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned place = at + i / 4 * 2 * kWarp + ((spread + i % 4 * 8) ^ sums_spread(sum));
    g[i] = gate[place], u[i] = up[place];
  }
  // All of one kind, side by side: what each takes is latency.
  if (kind == Activation::silu)
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) g[i] = quickly_activated(Activation::silu, g[i], u[i]);
  else
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) g[i] = quickly_activated(Activation::gelu_tanh, g[i], u[i]);
#pragma unroll
  for (unsigned i = 0; i < 8; ++i)
    if (2 * i + parity >= rows) g[i] = 0;
  const auto two = [&](int i) { return as_bits(__halves2half2(to_half(g[i]), to_half(g[i + 1]))); };
  return {two(0), two(2), two(4), two(6)};
}

// Gate's and up's sums meet in shared memory: all of them where they find room, else those of half
// the tokens at a time.
template <BlockType kType, int kColumns, int kMost>
__device__ void store_hidden(const TileProduct& args, const ExpertTile& work, const float* acc,
                             char* shared) {
  constexpr bool kAll = kColumns < kTileTokens || kHasWeightRing;
  constexpr unsigned kTiles = kHiddenTiles<kMost>, kRound = kAll ? kColumns : kColumns / 2;
  constexpr unsigned kSums = kRound / 2 * kWarp;  // of a warp
  static_assert(2 * kTiles * kSums * sizeof(float) <=
                kTileStages * kStageBytes<kMost> +
                    (kHasWeightRing ? kFeedBytes<kType, kMost> : 0));
  const unsigned lane = threadIdx.x % kWarp;
  float* sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (unsigned first = 0; first < kColumns; first += kRound) {
    float* own = sums + threadIdx.x / kWarp * kSums;
#pragma unroll
    for (unsigned i = 0; i < kRound / 2; ++i)
      own[i * kWarp + (lane ^ sums_spread(i))] = acc[first / 2 + i];
    __syncthreads();
#pragma unroll 1
    for (unsigned item = threadIdx.x; item < kRound * kTiles * 2; item += kTileThreads<kMost>) {
      const unsigned token = item % kRound, tile = item / kRound / 2, parity = item / kRound % 2;
      const int row_tile = static_cast<int>(blockIdx.x * kTiles + tile);
      const int row = row_tile * kTileRows;
      const int place = static_cast<int>(first + token);
      if (place >= work.n || row >= args.h.col_tiles * kTileCols) continue;
      const uint4 halves =
          hidden_piece(args.activation, parity, token,
                       static_cast<unsigned>(max(args.a.rows - row, 0)), sums + tile * kSums,
                       sums + (kTiles + tile) * kSums);
      __half* to =
          args.h.piece(work.first + place, row_tile % 4 * 2 + static_cast<int>(parity));
      store_sixteen(to + row_tile / 4 * kHalfTile, halves);
    }
    __syncthreads();
  }
}

template <BlockType kType, int kColumns, int kMost>
__device__ void hidden_work(const TileProduct& args, const Planes& a, const Planes& b,
                            const ExpertTile& work, char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kTiles = kHiddenTiles<kMost>;
  const int row_tile = static_cast<int>(blockIdx.x) * kTiles + warp % kTiles;
  const TokenTile tokens{args.x, args.gather ? args.list : nullptr, args.divisor, work.first,
                         work.n};
  Planes w = a;  // up is of the same type and shape
  if (warp >= kTiles) w.data = b.data;
  float acc[kColumns / 2];
  multiply_tiles<kType, kColumns, kMost>(w, row_tile, tokens, shared, acc);
  store_hidden<kType, kColumns, kMost>(args, work, acc, shared);
}

// The sums of a row tile, each token's to the row of its pair.
template <int kColumns>
__device__ __forceinline__ void store_output(const TileProduct& args, int row_tile, int n,
                                             const std::int32_t* pairs, const float* acc) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, first = 2 * (lane % 4);
  const int row = row_tile * kTileRows + lane / 4;
  const int low = row < args.a.rows ? n : 0, high = row + 8 < args.a.rows ? n : 0;
  float* out = args.out + row;
  const int stride = static_cast<int>(args.stride);
#pragma unroll
  for (int j = 0; j < kColumns / 8; j += 4) {
    int2 two[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      two[k] = *reinterpret_cast<const int2*>(pairs + 8 * (j + k) + first);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int token = 8 * j + k / 2 * 8 + first + k % 2, sum = 4 * j + k / 2 * 4 + k % 2;
      float* at = out + std::int64_t{k % 2 == 0 ? two[k / 2].x : two[k / 2].y} * stride;
      if (token < low) at[0] = acc[sum];
      if (token < high) at[8] = acc[sum + 2];
    }
  }
}

// Several blocks of rows with the same tokens. Where all column tiles fit shared memory
// (args.stages), they stay there: from the second block of rows on no warp waits for another.
template <BlockType kType, int kColumns, int kMost>
__device__ void output_work(const TileProduct& args, const Planes& a, const ExpertTile& work,
                            char* shared) {
  const int n = a.col_tiles;
  int row_tile = static_cast<int>(blockIdx.x) * args.row_blocks * kTileWarps<kMost> +
                 static_cast<int>(threadIdx.x) / kWarp;
  char* behind = shared + args.stages * kStageBytes<kMost>;
  WeightFeed<kType, kMost, true> weights(a, min(row_tile, a.row_tiles - 1), args.row_blocks,
                                         behind + kMost * sizeof(std::int32_t));
  TokenRing<kMost> ring(shared, {args.x, nullptr, 1, work.first, work.n}, n, args.stages, weights);
  auto* pairs = reinterpret_cast<std::int32_t*>(behind);
  for (int i = static_cast<int>(threadIdx.x); i < work.n; i += kTileThreads<kMost>)
    pairs[i] = args.list[work.first + i];
  for (int block = 0; block < args.row_blocks; ++block) {
    float acc[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) acc[i] = 0;
    for (int tile = 0; tile < n; tile += 2) {
      const int at = block == 0 ? ring.turn(weights) : ring.pass(weights);
      multiply_stage<kType, kColumns>(weights.first(), shared, at, acc);
      const Tile<kType>& odd = weights.second();
      if (tile + 1 < n)
        multiply_stage<kType, kColumns>(odd, shared, at + kStageBytes<kMost>, acc);
    }
    end_products<kColumns>(acc);
    store_output<kColumns>(args, row_tile, work.n, pairs, acc);
    row_tile += kTileWarps<kMost>;
  }
}

template <BlockType kType, int kColumns, int kMost, bool kGateUp>
__device__ __forceinline__ void expert_work(const TileProduct& args, const Planes& a,
                                            const Planes& b, const ExpertTile& work, char* shared) {
  if constexpr (kGateUp)
    hidden_work<kType, kColumns, kMost>(args, a, b, work, shared);
  else
    output_work<kType, kColumns, kMost>(args, a, work, shared);
}

// Of a size that is never launched here: it must not pass for done.
__device__ __forceinline__ void refuse_tile() {
#ifdef TESSERA_HIP
  __builtin_trap();
#else
  __trap();
#endif
}

// kGateUp: hidden activations, else down. An expert's tile takes the narrower code that holds it.
template <BlockType kType, int kMost, bool kGateUp>
__global__ void __launch_bounds__(kTileThreads<kMost>, kTileBlocks<kMost>)
    expert_kernel(const TESSERA_GRID_CONSTANT TileProduct args) {
  if constexpr (kMayHaveTokens<kMost>) {
    TESSERA_DYNAMIC_SHARED(char, raw);
    char* shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
    chain_wait();
    chain_trigger();
    Planes a, b;
    ExpertTile work{};
    if (!find_work<kMost>(args, a, b, work)) return;
    if (work.n <= kFewTokens)
      expert_work<kType, kFewTokens, kMost, kGateUp>(args, a, b, work, shared);
    else if constexpr (kMost > kFewTokens)
      expert_work<kType, kMost, kMost, kGateUp>(args, a, b, work, shared);
  } else {
    refuse_tile();
  }
}

template <BlockType kType, int kColumns>
__global__ void __launch_bounds__(kTileThreads<kColumns>, kTileBlocks<kColumns>)
    dense_kernel(const TESSERA_GRID_CONSTANT TileProduct args) {
  TESSERA_DYNAMIC_SHARED(char, raw);
  char* shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  chain_wait();
  chain_trigger();
  Planes a, b;
  ExpertTile work{};
  find_work<kColumns>(args, a, b, work);
  hidden_work<kType, kColumns, kColumns>(args, a, b, work, shared);
}

template <BlockType kType, int kColumns>
GpuError launch_dense_columns(const Launch& launch, const TileProduct& args) {
  return launch_kernel(
      launch, dense_kernel<kType, kColumns>,
      tile_grid(args.a, kHiddenTiles<kColumns>, (args.rows + kColumns - 1) / kColumns),
      dim3(kTileThreads<kColumns>), tile_shared<kType, kColumns>(kTileStages), args);
}

template <BlockType kType>
GpuError launch_dense(const Launch& launch, const TileProduct& args) {
  const int each = kHiddenTiles<64>;
  const int blocks = (args.a.row_tiles + each - 1) / each * ((args.rows + 63) / 64);
  if (args.rows <= 32 || blocks < launch.multiprocessors)
    return launch_dense_columns<kType, 32>(launch, args);
  return launch_dense_columns<kType, 128>(launch, args);
}

// Column tiles of a tile's tokens that stay in shared memory at once, and blocks of rows that then
// meet them.
template <BlockType kType, int kMost>
constexpr int kMostHeld = (kTileRoom<kMost> - kFeedBytes<kType, kMost>) / kStageBytes<kMost>;
constexpr int kMostRowBlocks = 4;

template <BlockType kType, int kMost, bool kGateUp>
GpuError launch_experts(const Launch& launch, TileProduct args, int max_tiles) {
  const auto kernel = expert_kernel<kType, kMost, kGateUp>;
  if constexpr (kGateUp)
    return launch_kernel(launch, kernel, tile_grid(args.a, kHiddenTiles<kMost>, max_tiles),
                         dim3(kTileThreads<kMost>), tile_shared<kType, kMost>(kTileStages), args);
  // Tiles come by pairs.
  const bool held =
      args.a.col_tiles <= kMostHeld<kType, kMost> / 2 * 2 && shared_limit(launch) >= 227 * 1024;
  args.stages = held ? (args.a.col_tiles + 1) / 2 * 2 : kTileStages;
  // No more than leaves every multiprocessor something to do.
  const int blocks = (args.a.row_tiles + kTileWarps<kMost> - 1) / kTileWarps<kMost> * max_tiles;
  const int places = std::max(1, launch.multiprocessors) * kTileBlocks<kMost>;
  args.row_blocks = held ? std::clamp(blocks / places, 1, kMostRowBlocks) : 1;
  const std::size_t shared = tile_shared<kType, kMost>(args.stages) +
                             kMost * sizeof(std::int32_t);
  return launch_kernel(launch, kernel,
                       tile_grid(args.a, args.row_blocks * kTileWarps<kMost>, max_tiles),
                       dim3(kTileThreads<kMost>), shared, args);
}

template <BlockType kType, bool kGateUp>
GpuError launch_experts(const Launch& launch, const TileProduct& args, int max_tiles, int tokens) {
  if (tokens == kFewTokens)
    return launch_experts<kType, kFewTokens, kGateUp>(launch, args, max_tiles);
  if (tokens == kNarrowTokens)
    return launch_experts<kType, kNarrowTokens, kGateUp>(launch, args, max_tiles);
  if constexpr (kGateUp)
    if (tokens == kMiddleTokens)
      return launch_experts<kType, kMiddleTokens, kGateUp>(launch, args, max_tiles);
  return launch_experts<kType, kTileTokens, kGateUp>(launch, args, max_tiles);
}

// `tokens`: of a tile at most.
GpuError product_of_experts(const Launch& launch, const TileProduct& args, int max_tiles,
                            int tokens) {
#define TESSERA_EXPERTS(TYPE)                                                   \
  return args.h.at != nullptr                                                   \
             ? launch_experts<TYPE, true>(launch, args, max_tiles, tokens)      \
             : launch_experts<TYPE, false>(launch, args, max_tiles, tokens)
  TESSERA_GPU_FOR_TYPE(args.a.type, TESSERA_EXPERTS)
#undef TESSERA_EXPERTS
  return TESSERA_GPU_API(ErrorInvalidValue);
}

GpuError dense_hidden_product(const Launch& launch, const TileProduct& args) {
#define TESSERA_HIDDEN(TYPE) return launch_dense<TYPE>(launch, args)
  TESSERA_GPU_FOR_TYPE(args.a.type, TESSERA_HIDDEN)
#undef TESSERA_HIDDEN
  return TESSERA_GPU_API(ErrorInvalidValue);
}

GpuError dense_hidden_tiles(const Launch& launch, const FfnArgs& ffn, const TilesScratch& scratch) {
  TileProduct args{};
  args.a = planes_of(ffn.dense.gate);
  args.b = planes_of(ffn.dense.up);
  args.rows = ffn.rows;
  args.divisor = 1;
  args.x = scratch.x;
  args.activation = ffn.dense.activation;
  args.h = scratch.dense_h;
  return dense_hidden_product(launch, args);
}

}  // namespace

TilesScratch tiles_scratch(const FfnArgs& args, void* workspace) {
  const TilesLayout at = tiles_layout(args);
  auto* base = static_cast<std::byte*>(workspace);
  const FfnShape shape = ffn_shape(args);
  const auto rows = [base](std::size_t offset, int cols) {
    return HalfRows{reinterpret_cast<__half*>(base + offset), (cols + kTileCols - 1) / kTileCols};
  };
  return {.x = rows(at.x, args.n_embd),
          .x_rest = rows(at.x_rest, args.n_embd),
          .h = rows(at.h, shape.expert_pad),
          .dense_h = rows(at.dense_h, shape.dense_pad),
          .weights = {base + at.weights, at.bytes - at.weights},
          .list = reinterpret_cast<std::int32_t*>(base + at.list),
          .first = reinterpret_cast<std::int32_t*>(base + at.first),
          .tiles = reinterpret_cast<ExpertTile*>(base + at.tiles),
          .n_tiles = reinterpret_cast<std::int32_t*>(base + at.n_tiles)};
}

bool dense_has_tiles(const FfnArgs& args) {
  const DenseArgs& d = args.dense;
  return d.gate.data != nullptr && has_tiles(d.gate) && d.gate.type == d.up.type &&
         has_tiles(d.down);
}

bool experts_have_tiles(const FfnArgs& args) {
  const ExpertShape& s = args.moe.shape;
  return args.moe.n_expert > 0 && has_tiles(s.gate) && s.gate.type == s.up.type &&
         has_tiles(s.down);
}

GpuError dense_tiles(const Launch& launch, const FfnArgs& ffn, const TilesScratch& scratch,
                     float* out, bool add) {
  const DenseArgs& dense = ffn.dense;
  const GpuError error =
      hidden_goes_by_gemm(launch, ffn.rows, dense.gate, dense.up, scratch.weights)
          ? gemm_hidden(launch, dense.gate, dense.up, dense.activation, scratch.x, ffn.rows,
                        scratch.dense_h, scratch.weights)
          : dense_hidden_tiles(launch, ffn, scratch);
  if (error != GpuError{}) return error;
  const Output down{dense.down, out, ffn.n_embd, add};
  return goes_by_gemm(launch, ffn.rows, {&down, 1}, scratch.weights)
             ? gemm(launch, {&down, 1}, scratch.dense_h, {}, ffn.rows, scratch.weights)
             : project_tiles(launch, down, scratch.dense_h, ffn.rows);
}

GpuError expert_tiles(const Launch& launch, const FfnArgs& ffn, const TilesScratch& scratch,
                      int experts, int pairs) {
  GpuError error = cover_pairs(launch, ffn, scratch);
  if (error != GpuError{}) return error;
  const MoeArgs& moe = ffn.moe;
  TileProduct args{};
  args.a = planes_of(moe.shape.gate);
  args.b = planes_of(moe.shape.up);
  args.b_offset = moe.shape.up_offset;
  args.table = moe.table;
  args.tiles = scratch.tiles;
  args.n_tiles = scratch.n_tiles;
  args.list = scratch.list;
  args.gather = true;
  args.divisor = moe.n_used;
  args.x = scratch.x;
  args.activation = moe.activation;
  args.h = scratch.h;
  const int tokens = expert_tile_tokens(launch, ffn);
  const int most = std::min(pairs, pairs / tokens + experts);  // tiles
  error = product_of_experts(launch, args, most, tokens);
  if (error != GpuError{}) return error;
  args.a = planes_of(moe.shape.down);
  args.a_offset = moe.shape.down_offset;
  args.gather = false;
  args.x = scratch.h;
  args.h = {};
  args.out = ffn.pair_out;
  args.stride = ffn.n_embd;
  return product_of_experts(launch, args, most, tokens);
}

}  // namespace tessera::gpu
