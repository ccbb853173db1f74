// Decode products of a matrix so high that each warp takes whole tiles: a head.
// Floor: the weights' bytes over the read bandwidth (417 MB of a head: 91 us at 4.6 TB/s).
//
// A block rounds the rows once for the hundred tiles or so of its warps; the next super-block's
// weights are on their way to registers under each product.
#include <algorithm>

#include "device/gpu/kernels/project_supers.cuh"

namespace tessera::gpu {
namespace {

// As many as registers allow: of the 15,520 tiles of a head of 248,320 rows 132 multiprocessors'
// warps have six each if they are 20, and seven or eight if they are 16.
template <int kCols>
inline constexpr int kWarps = kCols == 1 ? 20 : 16;

__device__ __forceinline__ void store_tile(const RowSums& sums, const SuperArgs& args, int tile,
                                           int first, int n, float factor, int lane) {
  const Segment& s = args.segments[0];
  const float low = sums.total(0), high = sums.total(1);
  const int row = tile * kTileRows + lane / 4 + 8 * (lane % 4);
  if (lane % 4 >= 2 || row >= s.w.rows) return;
  float* to = s.out + first * s.stride + row;
  const float sum = (lane % 4 == 0 ? low : high) * factor;
  *to = s.add ? *to + sum : sum;
}
__device__ __forceinline__ void store_tile(const EightSums& sums, const SuperArgs& args, int tile,
                                           int first, int n, const float (&factor)[2], int lane) {
  const Segment& s = args.segments[0];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = tile * kTileRows + lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    if (row >= s.w.rows || column >= n) continue;
    float* to = s.out + (first + column) * s.stride + row;
    const float sum = sums.total(i) * factor[i % 2];
    *to = s.add ? *to + sum : sum;
  }
}

template <BlockType kType>
__device__ __forceinline__ void dot_wide(const RawSuper& raw, const char* at, const SuperRoom& room,
                                         int lane, RowSums& sums) {
  dot_super<kType>(raw, at, lane, sums);
}
template <BlockType kType>
__device__ __forceinline__ void dot_wide(const RawSuper& raw, const char* at, const SuperRoom& room,
                                         int lane, EightSums& sums) {
  dot_super<kType>(raw, at, room.row_bytes, lane, sums);
}

template <BlockType kType, int kCols>
__global__ void __launch_bounds__(kWarps<kCols>* kWarp, 1)
    wide_kernel(const TESSERA_GRID_CONSTANT SuperArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(blockIdx.y) * kCols, n = min(kCols, args.rows - first);
  const Planes& w = args.segments[0].w;
  const int step = static_cast<int>(gridDim.x) * kWarps<kCols>;
  int tile = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  // Two super-blocks: while one is multiplied the next one's weights come.
  RawSuper raws[2];
  int load_tile = tile, load_super_at = 0;
  const auto load = [&](RawSuper& raw) {
    if (load_tile < args.units) load_super<kType>(raw, w, load_tile, load_super_at, lane);
    if (++load_super_at == args.supers) load_super_at = 0, load_tile += step;
  };
  load(raws[0]);
  chain_wait();
  chain_trigger();
  for (int i = warp; i < n * args.supers; i += kWarps<kCols>) {
    const int super = i % args.supers;
    stage_super(args.in, args.room, i / args.supers, super,
                load_input(args.in, first + i / args.supers, super, lane),
                super_weight(args.in, super, lane), lane, shared);
  }
  __syncthreads();
  float factors[2];
#pragma unroll
  for (int j = 0; j < 2; ++j)
    factors[j] =
        row_factor(args.in, args.room, kCols == 1 ? 0 : min(n - 1, lane % 4 * 2 + j), shared);
  typename SumsOf<kCols>::Type sums;
  int super = 0;
  const auto multiply = [&](const RawSuper& raw, RawSuper& next) {
    load(next);
    dot_wide<kType>(raw, shared + super * kSuperBytes, args.room, lane, sums);
    if (++super < args.supers) return;
    if constexpr (kCols == 1)
      store_tile(sums, args, tile, first, n, factors[0], lane);
    else
      store_tile(sums, args, tile, first, n, factors, lane);
    sums = {};
    super = 0;
    tile += step;
  };
  while (tile < args.units) {
    multiply(raws[0], raws[1]);
    if (tile < args.units) multiply(raws[1], raws[0]);
  }
}

template <int kCols>
GpuError launch_wide(const Launch& launch, const SuperArgs& args) {
  const auto kernel = args.segments[0].w.type == BlockType::Q4_K
                          ? wide_kernel<BlockType::Q4_K, kCols>
                          : wide_kernel<BlockType::Q6_K, kCols>;
  return launch_kernel(launch, kernel,
                       dim3(static_cast<unsigned>(std::max(1, launch.multiprocessors)),
                            static_cast<unsigned>((args.rows + kCols - 1) / kCols)),
                       dim3(kWarps<kCols> * kWarp), static_cast<std::size_t>(args.room.bytes),
                       args);
}

}  // namespace

int least_wide_units(const Launch& launch) {
  return 4 * kWarps<kDecodeRows> * std::max(1, launch.multiprocessors);
}

GpuError project_wide(const Launch& launch, const SuperArgs& args, int columns) {
  return columns == 1 ? launch_wide<1>(launch, args) : launch_wide<kDecodeRows>(launch, args);
}

}  // namespace tessera::gpu
