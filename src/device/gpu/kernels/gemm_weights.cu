// Weights as halves for the GEMM of long prompts (gemm.cuh).
//
// Floor: a matrix's bytes read and its halves written, which mostly stay in L2 (25 M weights of
// Q4_K: 14 MB and 50 MB, 0.02 ms). A warp decodes four tiles of 16 x 64 whose loads are on their
// way together, ahead of the wait for the kernel before.
#include "device/gpu/kernels/dot.cuh"
#include "device/gpu/kernels/gemm.cuh"
#include "device/gpu/kernels/tiles.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = 8, kTilesAWarp = 4;
constexpr int kTileBytes = kTileRows * kTileCols * 2;

// A tile's operands to shared memory, as rows of 128 bytes in swizzled pieces.
template <BlockType kType>
__device__ __forceinline__ void put_tile(const Tile<kType>& tile, int lane, char* room) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int group = 0; group < 2; ++group) {
    std::uint32_t a[2][4];
    decode_group(tile, group, a);
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = g + i % 2 * 8, piece = 2 * (2 * group + step) + i / 2;
        *reinterpret_cast<std::uint32_t*>(room + row * 128 + (piece ^ g) * 16 + t * 4) = a[step][i];
      }
  }
}

template <BlockType kType>
__global__ void __launch_bounds__(kWarps* kWarp)
    decode_kernel(const TESSERA_GRID_CONSTANT Planes w, const TESSERA_GRID_CONSTANT WeightPart part,
                  const TESSERA_GRID_CONSTANT HalfWeights to) {
  __shared__ __align__(16) char rooms[kWarps][kTileBytes];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int index = static_cast<int>(blockIdx.y) * kWarps + warp;  // of the row tile in the part
  const int first = static_cast<int>(blockIdx.x) * kTilesAWarp;
  const int n = index < part.n ? min(kTilesAWarp, w.col_tiles - first) : 0;
  Tile<kType> tiles[kTilesAWarp];
#pragma unroll
  for (int i = 0; i < kTilesAWarp; ++i)
    if (i < n) tiles[i].load(w, part.first + index, first + i, lane);
  chain_wait();
  chain_trigger();
#pragma unroll
  for (int i = 0; i < kTilesAWarp; ++i) {
    if (i >= n) break;
    __syncwarp();
    put_tile(tiles[i], lane, rooms[warp]);
    __syncwarp();
#pragma unroll
    for (int i16 = 0; i16 < kTileBytes / 16 / kWarp; ++i16) {
      const int at = i16 * kWarp + lane, row = at / 8;
      const int eight = index * 2 + row / 8;
      __half* out = to.row(part.to_row + eight * part.apart * 8, first + i) + at % 64 * 8;
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(rooms[warp] + at * 16);
    }
  }
}

// A thread a row and sixteen columns; zeros past the matrix.
__global__ void __launch_bounds__(kWarps* kWarp)
    plain_kernel(const TESSERA_GRID_CONSTANT Planes w, const TESSERA_GRID_CONSTANT WeightPart part,
                 const TESSERA_GRID_CONSTANT HalfWeights to,
                 const TESSERA_GRID_CONSTANT HalfWeights rest) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int sixteens = to.col_tiles * kTileCols / 16;
  const int index = at / sixteens, c = at % sixteens * 16;
  const int row = part.first * kTileRows + index, to_row = part.to_row + index;
  if (index >= part.n * kTileRows || row >= w.rows) return;
  const std::int64_t first = static_cast<std::int64_t>(row) * w.cols + c;
  float4 v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = {0, 0, 0, 0};
    if (c + 4 * i < w.cols) v[i] = plain_four(w, first + 4 * i);
  }
  chain_wait();
  chain_trigger();
  const auto store = [&](const HalfWeights& rows) {
    store_halves(rows.row(to_row, c / kTileCols), row_swizzle(to_row), c % kTileCols / 16, v);
  };
  store(to);
  if (rest.at == nullptr) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = half_rest(v[i]);
  store(rest);
}

}  // namespace

GpuError decode_weights(const Launch& launch, const Matrix& w, const WeightPart& part,
                        const HalfWeights& to) {
  const Planes planes = planes_of(w);
  const dim3 grid(static_cast<unsigned>((planes.col_tiles + kTilesAWarp - 1) / kTilesAWarp),
                  static_cast<unsigned>((part.n + kWarps - 1) / kWarps));
#define TESSERA_DECODE(TYPE) \
  return launch_kernel(launch, decode_kernel<TYPE>, grid, dim3(kWarps * kWarp), 0, planes, part, to)
  TESSERA_GPU_FOR_TYPE(w.type, TESSERA_DECODE)
#undef TESSERA_DECODE
  return TESSERA_GPU_API(ErrorInvalidValue);
}

GpuError decode_plain(const Launch& launch, const Matrix& w, const WeightPart& part,
                      const HalfWeights& to, const HalfWeights& rest) {
  const int threads = kWarps * kWarp;
  const int pieces = part.n * kTileRows * (to.col_tiles * kTileCols / 16);
  return launch_kernel(launch, plain_kernel,
                       dim3(static_cast<unsigned>((pieces + threads - 1) / threads)), dim3(threads),
                       0, planes_of(w), part, to, rest);
}

}  // namespace tessera::gpu
