// Projections of many rows through tensor-core tiles (tiles.cuh).
#include <algorithm>

#include "device/gpu/kernels/halves.cuh"

namespace tessera::gpu {
namespace {

__global__ void __launch_bounds__(kDecodeThreads)
    halve_kernel(const TESSERA_GRID_CONSTANT Input in, int padded, __half* out) {
  TESSERA_DYNAMIC_SHARED(float, inverse);
  chain_wait();
  chain_trigger();
  const int row = static_cast<int>(blockIdx.x);
  if (in.kind != InputKind::plain) inverse_rms(in, row, 1, inverse);
  const float* x = input_row(in, row);
  for (int c = static_cast<int>(threadIdx.x) * 4; c < padded; c += kDecodeThreads * 4) {
    float4 v = {0, 0, 0, 0};
    if (c < in.cols) v = input_four(in, row, 0, c, x, inverse);
    store_halves(out + static_cast<std::int64_t>(row) * padded, c, v);
  }
}

struct TilesArgs {
  Planes w;
  const __half* x;
  std::int64_t x_stride;
  int rows;
  float* out;
  std::int64_t stride;
  bool add;
};

template <int kColumns>
__device__ __forceinline__ void store_tile(const TilesArgs& args, int row_tile, int first, int n,
                                           const float* acc) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int token = i / 4 * 8 + 2 * t + i % 2, row = row_tile * kTileRows + g + i % 4 / 2 * 8;
    if (token >= n || row >= args.w.rows) continue;
    float* at = args.out + (first + token) * args.stride + row;
    *at = args.add ? *at + acc[i] : acc[i];
  }
}

template <BlockType kType, int kColumns>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiles_kernel(const TESSERA_GRID_CONSTANT TilesArgs args) {
  TESSERA_DYNAMIC_SHARED(char, raw);
  char* shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  chain_wait();
  chain_trigger();
  const int row_tile =
      static_cast<int>(blockIdx.x) * kTileWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int first = static_cast<int>(blockIdx.y) * kColumns;
  const TokenTile tokens{args.x, args.x_stride, nullptr,
                         1,      first,         min(kColumns, args.rows - first)};
  float acc[kColumns / 2];
  multiply_tiles<kType, kColumns>(args.w, row_tile, tokens, shared, acc);
  store_tile<kColumns>(args, row_tile, first, tokens.n, acc);
}

template <BlockType kType>
GpuError launch_tiles(const Launch& launch, const TilesArgs& args) {
  const int row_blocks = (args.w.row_tiles + kTileWarps - 1) / kTileWarps;
  const auto blocks = [&](int tokens) { return row_blocks * ((args.rows + tokens - 1) / tokens); };
  const auto grid = [&](int tokens) {
    return dim3(static_cast<unsigned>(row_blocks),
                static_cast<unsigned>((args.rows + tokens - 1) / tokens));
  };
  // Narrow tiles where wide ones would leave multiprocessors idle.
  if (args.rows <= 32 || blocks(64) < launch.multiprocessors)
    return launch_kernel(launch, tiles_kernel<kType, 32>, grid(32), dim3(kTileThreads), kTileShared,
                         args);
  if (args.rows <= 64 || blocks(128) < launch.multiprocessors)
    return launch_kernel(launch, tiles_kernel<kType, 64>, grid(64), dim3(kTileThreads), kTileShared,
                         args);
  return launch_kernel(launch, tiles_kernel<kType, 128>, grid(128), dim3(kTileThreads), kTileShared,
                       args);
}

}  // namespace

GpuError halve_rows(const Launch& launch, const Input& in, int rows, int padded, __half* out) {
  const std::size_t shared = sizeof(float) * static_cast<std::size_t>(staged_scratch_floats(in, 1));
  return launch_kernel(launch, halve_kernel, dim3(static_cast<unsigned>(rows)),
                       dim3(kDecodeThreads), shared, in, padded, out);
}

GpuError project_tiles(const Launch& launch, const Output& output, const __half* tokens, int rows) {
  TilesArgs args{};
  args.w = planes_of(output.w);
  args.x = tokens;
  args.x_stride = std::int64_t{args.w.col_tiles} * kTileCols;
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
