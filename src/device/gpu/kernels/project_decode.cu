// Decode projections. Floor: the weights' bytes over the read bandwidth (a 2048 x 12288 Q4_K
// product is 14.5 MB: 3.2 us at 4.6 TB/s); arithmetic is 1.5 instructions a weight and lane
// whatever the number of rows, about 40% of the issue slots at that rate.
//
// A block takes one 16-row tile after another; its 8 warps share the columns. The input is normed
// and rounded by every block anew: it comes from L2 while the weights of the block's first tile are
// already on their way.
#include "device/gpu/kernels/project_decode.cuh"

#include <algorithm>

#include "device/gpu/kernels/dot.cuh"

namespace tessera::gpu {
namespace {

// Blocks on one multiprocessor: what the registers allow.
constexpr int blocks_each(int n_cols, int fours) {
  return n_cols == 1 && fours < 2 ? 2 : 1;
}

struct Segment {
  Planes w;
  float* out;
  std::int64_t stride;
  bool add;
  int end_unit;  // units of this and the segments before it
};

struct DecodeArgs {
  Input in;
  int rows;
  int n_segments;
  Segment segments[kMaxOutputs];
  int units;
  int plain_rows;  // of a plain matrix in one unit
  StagedLayout at;
  bool bytes_too, floats_too;
};

__device__ __forceinline__ int segment_of(const DecodeArgs& args, int unit) {
  int i = 0;
  while (unit >= args.segments[i].end_unit) ++i;
  return i;
}

__device__ __forceinline__ void store(const Segment& s, int first, int row, int column,
                                      float value) {
  float* at = s.out + (first + column) * s.stride + row;
  *at = s.add ? *at + value : value;
}

// `per` rows of a plain matrix; as many warps share the columns of each.
template <int kCols>
__device__ void plain_unit(const Segment& s, int unit, int per, int first, const Staged<kCols>& x,
                           float* shares) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int parts = kDecodeWarps / per;
  const int row = unit * per + warp / parts, part = warp % parts;
  const int each = (s.w.cols + 4 * parts - 1) / (4 * parts) * 4;
  float out[kCols];
  if (row < s.w.rows)
    dot_plain<kCols>(s.w, row, min(s.w.cols, part * each), min(s.w.cols, (part + 1) * each), x,
                     lane, out);
#pragma unroll
  for (int j = 0; j < kCols; ++j)
    if (lane == j) shares[warp * kCols + j] = out[j];
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x) / kCols;
  const int column = static_cast<int>(threadIdx.x) % kCols;
  if (r < per && column < x.n && unit * per + r < s.w.rows) {
    float sum = 0;
    for (int q = 0; q < parts; ++q) sum += shares[(r * parts + q) * kCols + column];
    store(s, first, unit * per + r, column, sum);
  }
  __syncthreads();
}

__device__ __forceinline__ int tile_of(const DecodeArgs& args, int segment, int unit) {
  return unit - (segment == 0 ? 0 : args.segments[segment - 1].end_unit);
}

// The row and column whose sum this thread stores, and what is there already.
template <int kCols>
struct Place {
  float* at = nullptr;
  float before = 0;
  __device__ __forceinline__ Place(const Segment& s, int tile, int first, int n) {
    const int r = static_cast<int>(threadIdx.x) / kCols;
    const int column = static_cast<int>(threadIdx.x) % kCols;
    const int row = tile * kTileRows + r;
    if (r >= kTileRows || column >= n || row >= s.w.rows) return;
    at = s.out + (first + column) * s.stride + row;
    if (s.add) before = *at;
  }
};

template <int kCols>
__device__ __forceinline__ void finish_unit(const Place<kCols>& place, float* shares,
                                            const float (&acc)[4]) {
  const float sum = add_shares<kCols>(shares, acc);
  if (place.at != nullptr) *place.at = place.before + sum;
  __syncthreads();
}

// Where a block's shared memory goes.
template <int kCols>
struct Room {
  char* input;
  float* scratch;
  float* shares;
  __device__ Room(char* shared, const DecodeArgs& args)
      : input(shared),
        scratch(reinterpret_cast<float*>(shared + args.at.bytes)),
        shares(scratch + (staged_scratch_floats(args.in, kCols) + 3) / 4 * 4) {}
};

// Waits for the kernels before and stages their rows. kFours 0: rows too wide for registers.
template <int kCols, int kFours>
__device__ __forceinline__ void wait_and_stage(const DecodeArgs& args, int first, int n,
                                               const Room<kCols>& room) {
  if constexpr (kFours == 0) {
    chain_wait();
    chain_trigger();
    stage_input<kCols>(args.in, first, n, room.input, args.at, args.bytes_too, args.floats_too,
                       room.scratch);
  } else {
    EarlyInput<kFours> early;
    early.load(args.in);
    chain_wait();
    chain_trigger();
    float4 v[kFours];
    load_row(args.in, first, v);
    stage_early<kCols, kFours>(args.in, early, v, first, n, room.input, args.at, args.bytes_too,
                               args.floats_too, room.scratch);
  }
}

// The block's first unit: its weights are on their way before the wait.
template <BlockType kType, int kCols, int kFours>
__device__ __forceinline__ void first_unit(const DecodeArgs& args, const Segment& s, int tile,
                                           int first, int n, const Room<kCols>& room) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int begin = share_begin(s.w.col_tiles, warp), end = share_begin(s.w.col_tiles, warp + 1);
  EarlyTiles<kType> tiles;
  tiles.load(s.w, tile, begin, end, lane);
  wait_and_stage<kCols, kFours>(args, first, n, room);
  const Place<kCols> place(s, tile, first, n);
  const Staged<kCols> x(room.input, args.at, n);
  float acc[4] = {0, 0, 0, 0};
  tiles.dot(s.w, tile, begin, end, x, lane, acc);
  finish_unit<kCols>(place, room.shares, acc);
}

template <int kCols, bool kCommon, int kFours>
__global__ void __launch_bounds__(kDecodeThreads, kCommon ? blocks_each(kCols, kFours) : 1)
    project_kernel(const TESSERA_GRID_CONSTANT DecodeArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  const Room<kCols> room(shared, args);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int step = static_cast<int>(gridDim.x);
  const int first = static_cast<int>(blockIdx.y) * kCols;
  const int n = min(kCols, args.rows - first);
  int unit = static_cast<int>(blockIdx.x);
  const auto prefetch = [&](int at) {
    if (at >= args.units) return;
    const int segment = segment_of(args, at);
    const Planes& w = args.segments[segment].w;
    const int tile = tile_of(args, segment, at);
    if (w.col_tiles != 0) return prefetch_tile(w, tile);
    const int row = w.cols * (w.type == BlockType::F32 ? 4 : 2);
    prefetch_block(w.data + static_cast<std::int64_t>(tile) * args.plain_rows * row,
                   min(args.plain_rows, w.rows - tile * args.plain_rows) * row);
  };
  prefetch(unit);
  prefetch(unit + step);
  const int own = segment_of(args, unit);
  const Segment& s = args.segments[own];
  bool done = false;
  if constexpr (kCommon) {
    done = s.w.col_tiles != 0;
#define TESSERA_FIRST(TYPE) \
  first_unit<TYPE, kCols, kFours>(args, s, tile_of(args, own, unit), first, n, room)
    TESSERA_GPU_FOR_COMMON(s.w.type, TESSERA_FIRST)
#undef TESSERA_FIRST
  }
  if (done)
    unit += step;
  else
    wait_and_stage<kCols, kFours>(args, first, n, room);
  const Staged<kCols> x(shared, args.at, n);
  for (; unit < args.units; unit += step) {
    prefetch(unit + step);
    const int segment = segment_of(args, unit);
    const Segment& s = args.segments[segment];
    const int tile = tile_of(args, segment, unit);
    if (s.w.col_tiles == 0) {
      plain_unit<kCols>(s, tile, args.plain_rows, first, x, room.shares);
      continue;
    }
    const Place<kCols> place(s, tile, first, n);
    float acc[4] = {0, 0, 0, 0};
    dot_quantised<kCols, kCommon>(s.w, tile, share_begin(s.w.col_tiles, warp),
                                  share_begin(s.w.col_tiles, warp + 1), x, lane, acc);
    finish_unit<kCols>(place, room.shares, acc);
  }
}

// So many tiles that each warp takes whole ones: no sums between warps. Quantised matrices alone.
template <int kCols, bool kCommon>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    wide_kernel(const TESSERA_GRID_CONSTANT DecodeArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  const Room<kCols> room(shared, args);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int first = static_cast<int>(blockIdx.y) * kCols;
  const int n = min(kCols, args.rows - first);
  wait_and_stage<kCols, 0>(args, first, n, room);
  const Staged<kCols> x(shared, args.at, n);
  const int step = static_cast<int>(gridDim.x) * kDecodeWarps;
  for (int unit = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       unit < args.units; unit += step) {
    const int segment = segment_of(args, unit);
    const Segment& s = args.segments[segment];
    const int tile = tile_of(args, segment, unit);
    float acc[4] = {0, 0, 0, 0};
    dot_quantised<kCols, kCommon, 4>(s.w, tile, 0, s.w.col_tiles, x, lane, acc);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tile * kTileRows + g + i / 2 * 8;
      const int column = kCols == 1 ? 0 : 2 * t + i % 2;
      const bool mine = kCols > 1 || (t == 0 && i % 2 == 0);
      if (mine && column < n && row < s.w.rows) store(s, first, row, column, acc[i]);
    }
  }
}

// Rows of few columns are staged from registers, in an order of their own whatever the batch.
template <int kCols>
auto kernel_for(const DecodeArgs& args, bool common) {
  if (!common) return project_kernel<kCols, false, 0>;
  if (fits_early(args.in, 1)) return project_kernel<kCols, true, 1>;
  if (fits_early(args.in, 2)) return project_kernel<kCols, true, 2>;
  return project_kernel<kCols, true, 0>;
}

template <int kCols>
GpuError launch_project(const Launch& launch, const DecodeArgs& args, std::size_t shared,
                        bool common) {
  const int passes = (args.rows + kCols - 1) / kCols;
  const int machine = std::max(1, launch.multiprocessors);
  if (args.units >= 4 * kDecodeWarps * machine && !args.floats_too)
    return launch_kernel(launch, common ? wide_kernel<kCols, true> : wide_kernel<kCols, false>,
                         dim3(static_cast<unsigned>(machine), static_cast<unsigned>(passes)),
                         dim3(kDecodeThreads), shared, args);
  const int blocks =
      std::min(args.units, machine * blocks_each(kCols, fits_early(args.in, 1) ? 1 : 2));
  return launch_kernel(launch, kernel_for<kCols>(args, common),
                       dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(passes)),
                       dim3(kDecodeThreads), shared, args);
}

std::size_t shared_bytes(DecodeArgs* args, int n_cols) {
  args->at = staged_layout(args->in.cols, n_cols, args->bytes_too, args->floats_too);
  return static_cast<std::size_t>(args->at.bytes) +
         sizeof(float) *
             static_cast<std::size_t>((staged_scratch_floats(args->in, n_cols) + 3) / 4 * 4 +
                                      kDecodeWarps * kTileRows * n_cols);
}

}  // namespace

GpuError project_decode(const Launch& launch, const ProjectArgs& project,
                        const Rounding& rounding) {
  if (has_project_supers(project)) return project_supers(launch, project, rounding);
  if (rounding.here > 0) return TESSERA_GPU_API(ErrorInvalidValue);
  DecodeArgs args{};
  args.in = project.input;
  args.rows = project.rows;
  bool common = true;
  for (int i = 0; i < project.n_outputs; ++i)
    (is_plain(project.outputs[static_cast<std::size_t>(i)].w.type) ? args.floats_too
                                                                   : args.bytes_too) = true;
  // Alone, plain rows spread over the machine; beside others they should not cost a round more.
  args.plain_rows = args.bytes_too ? 4 : 2;
  // Plain matrices first: their units take longest.
  for (const bool plain : {true, false})
    for (int i = 0; i < project.n_outputs; ++i) {
      const Output& output = project.outputs[static_cast<std::size_t>(i)];
      if (is_plain(output.w.type) != plain) continue;
      args.units += plain ? (output.w.rows + args.plain_rows - 1) / args.plain_rows
                          : static_cast<int>(row_tiles(output.w.rows));
      args.segments[args.n_segments++] = {planes_of(output.w), output.out, output.stride,
                                          output.add, args.units};
      common = common && (plain || is_common(output.w.type));
    }
  if (args.rows > 1) {
    const std::size_t shared = shared_bytes(&args, kDecodeRows);
    if (shared + 2048 <= shared_limit())
      return launch_project<kDecodeRows>(launch, args, shared, common);
  }
  const std::size_t shared = shared_bytes(&args, 1);
  return launch_project<1>(launch, args, shared, common);
}

}  // namespace tessera::gpu
