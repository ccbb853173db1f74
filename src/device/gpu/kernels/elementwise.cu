// Embedding rows, rotary tables, residual sums, logit caps, a step's inputs. Most move a few rows:
// their floor is the launch.
#include <algorithm>

#include "device/gpu/kernels/dot.cuh"
#include "device/gpu/kernels/launch.h"

namespace tessera::gpu {
namespace {

constexpr int kThreads = 256;

// One warp a tile of 64 columns: the lanes of the token's row hold its 64 numbers.
template <BlockType kType>
__device__ __forceinline__ void embed_tile(const Planes& w, int token, int col_tile, int lane,
                                           float factor, float* out) {
  Tile<kType> tile;
  tile.load(w, token / kTileRows, col_tile, lane);
  if (lane / 4 != token % 8) return;
  const int half = token % kTileRows / 8, t = lane % 4;
#pragma unroll
  for (int group = 0; group < 2; ++group) {
    std::uint32_t a[4];
    tile.levels(group, a);
    float scale[Tile<kType>::kParts][2], minimum[Tile<kType>::kParts][2];
    tile.factors(group, scale, minimum);
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int part = Tile<kType>::kParts == 1 ? 0 : high;
      const std::uint32_t word = half == 0 ? a[2 * high] : a[2 * high + 1];
      const float s = half == 0 ? scale[part][0] : scale[part][1];
      const float m = half == 0 ? minimum[part][0] : minimum[part][1];
      const int column = col_tile * kTileCols + group * 32 + high * 16 + 4 * t;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (column + j < w.cols) out[column + j] = (s * signed_byte_at(word, j) - m) * factor;
    }
  }
}

// What the host has written is there when the kernel is launched, so it is read before the kernels
// before are done with what it is written over.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const std::int32_t* from, std::int32_t* to, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int32_t word = i < n ? from[i] : 0;
  chain_wait();
  if (i < n) to[i] = word;
  chain_trigger();
}

// The part of a table that has the row; `token` is then counted from that part's first one.
__device__ __forceinline__ Planes part_of(const Planes& table, const Planes& rest, int& token) {
  Planes part = table;
  if (token < table.rows) return part;
  token -= table.rows;
  part.data = rest.data;
  part.extra = rest.extra;
  part.scales = rest.scales;
  part.supers = rest.supers;
  return part;
}

// A row by several blocks, of whose warps each has one tile: memory answers once, and not as often
// as a warp has tiles.
constexpr int kTilesABlock = kThreads / kWarp;
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const TESSERA_GRID_CONSTANT Planes table, const TESSERA_GRID_CONSTANT Planes rest,
                 const std::int32_t* tokens, const std::int32_t* chosen, float factor, float* out) {
  chain_wait();
  chain_trigger();
  int token = tokens[blockIdx.x];
  if (token < 0) token = max(chosen[-1 - token], 0);
  const Planes w = part_of(table, rest, token);
  float* row = out + static_cast<std::int64_t>(blockIdx.x) * w.cols;
  if (w.col_tiles == 0) {
    const std::int64_t at = static_cast<std::int64_t>(token) * w.cols;
    const int first = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
    for (int c = first; c < w.cols; c += kThreads * static_cast<int>(gridDim.y)) {
      float v;
      if (w.type == BlockType::F32)
        v = reinterpret_cast<const float*>(w.data)[at + c];
      else
        v = plain_pair(w.type, reinterpret_cast<const std::uint16_t*>(w.data)[at + c]).x;
      row[c] = v * factor;
    }
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (const int tile = static_cast<int>(blockIdx.y) * kTilesABlock + warp; tile < w.col_tiles) {
#define TESSERA_EMBED(TYPE) embed_tile<TYPE>(w, token, tile, lane, factor, row)
    TESSERA_GPU_FOR_TYPE(w.type, TESSERA_EMBED)
#undef TESSERA_EMBED
  }
}

__global__ void rope_kernel(const TESSERA_GRID_CONSTANT RopeTableArgs args) {
  chain_wait();
  chain_trigger();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= args.rows * args.half) return;
  // The f32 product, as published models compute the angle; its cosine exactly.
  const double angle = static_cast<double>(
      __fmul_rn(static_cast<float>(args.position[i / args.half]), args.inv_freq[i % args.half]));
  args.cos[i] = static_cast<float>(cos(angle)) * args.magnitude;
  args.sin[i] = static_cast<float>(sin(angle)) * args.magnitude;
}

__global__ void __launch_bounds__(kThreads)
    add_normed_kernel(const TESSERA_GRID_CONSTANT AddNormedArgs args) {
  __shared__ float inverse[1];
  chain_wait();
  chain_trigger();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * args.cols;
  if (args.weight != nullptr) {
    const Input in{.kind = InputKind::rms_norm,
                   .x = args.branch,
                   .stride = args.cols,
                   .cols = args.cols,
                   .weight = args.weight,
                   .eps = args.eps};
    inverse_rms(in, static_cast<int>(blockIdx.x), 1, inverse);
  }
  for (int c = static_cast<int>(threadIdx.x); c < args.cols; c += kThreads) {
    float v = args.branch[at + c];
    if (args.weight != nullptr) v = v * inverse[0] * args.weight[c];
    args.hidden[at + c] += v;
  }
}

__global__ void softcap_kernel(float* x, std::int64_t n, float cap) {
  chain_wait();
  chain_trigger();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) x[i] = cap * tanhf(x[i] / cap);
}

}  // namespace

GpuError copy_words(const Launch& launch, const std::int32_t* from, std::int32_t* to,
                    std::int64_t n) {
  return launch_kernel(launch, copy_kernel,
                       dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)), dim3(kThreads),
                       0, from, to, n);
}

GpuError embed(const Launch& launch, const EmbedArgs& args) {
  const Planes table = planes_of(args.table);
  const int tiles = (table.cols + kTileCols - 1) / kTileCols;
  const dim3 blocks(static_cast<unsigned>(args.rows),
                    static_cast<unsigned>((tiles + kTilesABlock - 1) / kTilesABlock));
  return launch_kernel(launch, embed_kernel, blocks, dim3(kThreads), 0, table,
                       planes_of(args.rest), args.tokens, args.chosen, args.scale, args.out);
}

GpuError rope_tables(const Launch& launch, const RopeTableArgs& args) {
  const int n = args.rows * args.half;
  return launch_kernel(launch, rope_kernel, dim3(static_cast<unsigned>((n + 63) / 64)), dim3(64), 0,
                       args);
}

GpuError add_normed(const Launch& launch, const AddNormedArgs& args) {
  return launch_kernel(launch, add_normed_kernel, dim3(static_cast<unsigned>(args.rows)),
                       dim3(kThreads), 0, args);
}

GpuError softcap(const Launch& launch, float* x, std::int64_t n, float cap) {
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  return launch_kernel(launch, softcap_kernel, dim3(blocks), dim3(kThreads), 0, x, n, cap);
}

}  // namespace tessera::gpu
