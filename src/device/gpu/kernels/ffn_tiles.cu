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

// The up warps hand their sums to the gate warps, which store the activations.
template <int kColumns, int kMost>
__device__ void store_hidden(const TileProduct& args, int row_tile, const ExpertTile& work,
                             float* acc, char* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4, t = lane % 4;
  float* exchange =
      reinterpret_cast<float*>(shared) + (warp % kHiddenTiles<kMost>)*kColumns * kTileRows + lane;
  if (warp >= kHiddenTiles<kMost>)
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) exchange[i * kWarp] = acc[i];
  __syncthreads();
  if (warp >= kHiddenTiles<kMost> || row_tile * kTileRows >= args.h.col_tiles * kTileCols) return;
  // Columns g and g + 8 of 16 stand in the same piece.
  __half* column = args.h.at + row_tile / 4 * kHalfTile + half_place(g) % kPieceHalves;
  const int piece = row_tile % 4 * 2 + g % 2;
#pragma unroll
  for (int i = 0; i < kColumns / 2; i += i % 4 == 0 ? 1 : 3) {
    const int token = i / 4 * 8 + 2 * t + i % 2;
    if (token >= work.n) continue;
    __half* at = column + (args.h.piece(work.first + token, piece) - args.h.at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_tile * kTileRows + g + 8 * half, a = i + 2 * half;
      const float value =
          row < args.a.rows ? activated(args.activation, acc[a], exchange[a * kWarp]) : 0.0f;
      at[4 * half] = to_half(value);
    }
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
  store_hidden<kColumns, kMost>(args, row_tile, work, acc, shared);
}

// A column of the tile: the sums of its rows, to the pair that it stands for.
template <int kColumns>
__device__ __forceinline__ void store_output(const TileProduct& args, int row_tile, int n,
                                             const std::int32_t* pairs, const float* acc) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = row_tile * kTileRows + lane / 4;
#pragma unroll
  for (int i = 0; i < kColumns / 2; i += i % 4 == 0 ? 1 : 3) {
    const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    if (token >= n) continue;
    float* at = args.out + pairs[token] * args.stride + row;
    if (row < args.a.rows) at[0] = acc[i];
    if (row + 8 < args.a.rows) at[8] = acc[i + 2];
  }
}

// Several blocks of rows with the same tokens. Where all column tiles fit shared memory
// (args.stages), they stay there: from the second block of rows on no warp waits for another.
template <BlockType kType, int kColumns, int kMost>
__device__ void output_work(const TileProduct& args, const Planes& a, const ExpertTile& work,
                            char* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int n = a.col_tiles;
  int row_tile = static_cast<int>(blockIdx.x) * args.row_blocks * kTileWarps<kMost> +
                 static_cast<int>(threadIdx.x) / kWarp;
  auto from = Tile<kType>::at(a, min(row_tile, a.row_tiles - 1), lane);
  Tile<kType> even, odd;
  even.load(from, 0);
  TokenRing<kMost> ring(shared, {args.x, nullptr, 1, work.first, work.n}, n, args.stages);
  auto* pairs = reinterpret_cast<std::int32_t*>(shared + args.stages * kStageBytes<kMost>);
  for (int i = static_cast<int>(threadIdx.x); i < work.n; i += kTileThreads<kMost>)
    pairs[i] = args.list[work.first + i];
  for (int block = 0; block < args.row_blocks; ++block) {
    // Past the matrix a warp goes on with its last row tile, and stores nothing.
    const int skipped = row_tile + kTileWarps<kMost> < a.row_tiles ? kTileWarps<kMost> : 0;
    float acc[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) acc[i] = 0;
    for (int tile = 0; tile < n; tile += 2) {
      if (tile + 1 < n) odd.load(from, tile + 1);
      const int at = block == 0 ? ring.turn() : ring.pass();
      multiply_stage<kType, kColumns>(even, shared, at, acc);
      const bool last = tile + 2 >= n;
      if (last) from.skip(a, skipped);
      if (!last || block + 1 < args.row_blocks) even.load(from, last ? 0 : tile + 2);
      if (tile + 1 < n) multiply_stage<kType, kColumns>(odd, shared, at + kStageBytes<kMost>, acc);
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

// kGateUp: hidden activations, else down. An expert's tile takes the narrower code that holds it.
template <BlockType kType, int kMost, bool kGateUp>
__global__ void __launch_bounds__(kTileThreads<kMost>, kTileBlocks<kMost>)
    expert_kernel(const TESSERA_GRID_CONSTANT TileProduct args) {
  TESSERA_DYNAMIC_SHARED(char, raw);
  char* shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  chain_wait();
  chain_trigger();
  Planes a, b;
  ExpertTile work{};
  if (!find_work<kMost>(args, a, b, work)) return;
  if (work.n <= 32)
    expert_work<kType, 32, kMost, kGateUp>(args, a, b, work, shared);
  else
    expert_work<kType, kMost, kMost, kGateUp>(args, a, b, work, shared);
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
      dim3(kTileThreads<kColumns>), kTileShared<kColumns>, args);
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
template <int kMost>
constexpr int kMostHeld = (227 * 1024 / kTileBlocks<kMost> - 3072) / kStageBytes<kMost>;
constexpr int kMostRowBlocks = 4;

template <BlockType kType, int kMost, bool kGateUp>
GpuError launch_experts(const Launch& launch, TileProduct args, int max_tiles) {
  const auto kernel = expert_kernel<kType, kMost, kGateUp>;
  if constexpr (kGateUp)
    return launch_kernel(launch, kernel, tile_grid(args.a, kHiddenTiles<kMost>, max_tiles),
                         dim3(kTileThreads<kMost>), kTileShared<kMost>, args);
  // Tiles come by pairs.
  const bool held =
      args.a.col_tiles <= kMostHeld<kMost> / 2 * 2 && shared_limit(launch) >= 227 * 1024;
  args.stages = held ? (args.a.col_tiles + 1) / 2 * 2 : kTileStages;
  // No more than leaves every multiprocessor something to do.
  const int blocks = (args.a.row_tiles + kTileWarps<kMost> - 1) / kTileWarps<kMost> * max_tiles;
  const int places = std::max(1, launch.multiprocessors) * kTileBlocks<kMost>;
  args.row_blocks = held ? std::clamp(blocks / places, 1, kMostRowBlocks) : 1;
  const std::size_t shared = static_cast<std::size_t>(args.stages) * kStageBytes<kMost> + 1024 +
                             kMost * sizeof(std::int32_t);
  return launch_kernel(launch, kernel,
                       tile_grid(args.a, args.row_blocks * kTileWarps<kMost>, max_tiles),
                       dim3(kTileThreads<kMost>), shared, args);
}

// `tokens`: of a tile at most.
GpuError product_of_experts(const Launch& launch, const TileProduct& args, int max_tiles,
                            int tokens) {
#define TESSERA_EXPERTS(TYPE)                                                                  \
  if (args.h.at != nullptr)                                                                    \
    return tokens == kNarrowTokens ? launch_experts<TYPE, 64, true>(launch, args, max_tiles)   \
                                   : launch_experts<TYPE, 128, true>(launch, args, max_tiles); \
  return tokens == kNarrowTokens ? launch_experts<TYPE, 64, false>(launch, args, max_tiles)    \
                                 : launch_experts<TYPE, 128, false>(launch, args, max_tiles)
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
                      int most) {
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
  const int tokens = expert_tile_tokens(ffn);
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
