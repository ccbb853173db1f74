// Projections of many rows through tensor-core tiles (tiles.cuh).
#include "device/gpu/kernels/halves.cuh"

namespace tessera::gpu {
namespace {

template <int kColumns>
__device__ __forceinline__ void store_tile(const TileProduct& args, int row_tile, int first, int n,
                                           const float* acc) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int token = i / 4 * 8 + 2 * t + i % 2, row = row_tile * kTileRows + g + i % 4 / 2 * 8;
    if (token >= n || row >= args.a.rows) continue;
    put_sum(args.out + (first + token) * args.stride + row, acc[i], args.add);
  }
}

template <BlockType kType, int kColumns>
__global__ void __launch_bounds__(kTileThreads<kColumns>, kTileBlocks<kColumns>)
    tiles_kernel(const TESSERA_GRID_CONSTANT TileProduct args) {
  TESSERA_DYNAMIC_SHARED(char, raw);
  char* shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  chain_wait();
  chain_trigger();
  const int row_tile =
      static_cast<int>(blockIdx.x) * kTileWarps<kColumns> + static_cast<int>(threadIdx.x) / kWarp;
  const int first = static_cast<int>(blockIdx.y) * kColumns;
  const TokenTile tokens{args.x, nullptr, 1, first, min(kColumns, args.rows - first)};
  float acc[kColumns / 2];
  multiply_tiles<kType, kColumns, kColumns>(args.a, row_tile, tokens, shared, acc);
  store_tile<kColumns>(args, row_tile, first, tokens.n, acc);
}

template <BlockType kType, int kColumns>
GpuError launch_columns(const Launch& launch, const TileProduct& args) {
  return launch_kernel(
      launch, tiles_kernel<kType, kColumns>,
      tile_grid(args.a, kTileWarps<kColumns>, (args.rows + kColumns - 1) / kColumns),
      dim3(kTileThreads<kColumns>), tile_shared<kType, kColumns>(kTileStages), args);
}

template <BlockType kType>
GpuError launch_tiles(const Launch& launch, const TileProduct& args) {
  // Narrow tiles where wide ones would leave multiprocessors idle.
  const auto idle = [&](int tokens, int warps) {
    return (args.a.row_tiles + warps - 1) / warps * ((args.rows + tokens - 1) / tokens) <
           launch.multiprocessors;
  };
  if (args.rows <= 32 || idle(64, kTileWarps<64>)) return launch_columns<kType, 32>(launch, args);
  if (args.rows <= 64 || idle(128, kTileWarps<128>)) return launch_columns<kType, 64>(launch, args);
  return launch_columns<kType, 128>(launch, args);
}

}  // namespace

GpuError project_tiles(const Launch& launch, const Output& output, const HalfRows& tokens,
                       int rows) {
  TileProduct args{};
  args.a = planes_of(output.w);
  args.x = tokens;
  args.rows = rows;
  args.out = output.out;
  args.stride = output.stride;
  args.add = output.add;
#define TESSERA_TILES(TYPE) return launch_tiles<TYPE>(launch, args)
  TESSERA_GPU_FOR_TYPE(output.w.type, TESSERA_TILES)
#undef TESSERA_TILES
  return TESSERA_GPU_API(ErrorInvalidValue);
}

}  // namespace tessera::gpu
