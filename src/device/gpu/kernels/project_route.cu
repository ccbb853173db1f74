// The projection out of a mixer and the router behind it as one kernel, of 2 to 8 rows whose FFN
// goes together (ffn_together.cu).
//
// Of eight rows the two are 7 MB, 1.5 us at 4.6 TB/s, and took 9 as kernels of their own: the
// router's blocks find no room for their weights before the projection's have left, see its end a
// microsecond later, and ask for their columns then. Here one block a tile of the residual makes 16
// columns, passes them on as in a run (run_values.cuh), and has the router's weights by then.
//
// A team of eight blocks takes 16 of the router's rows, each block an eighth of the columns, as the
// clusters of plain_rows.cu do, whose arithmetic and order of sums these are; those of the
// projection are the narrow kernel's (project_supers.cu). So the bits are those of the two kernels.
// The team's sums pass through memory, too: of clusters of eight that have a multiprocessor a block
// an H200 was seen to hold 15, not 16.
#include "device/gpu/kernels/ffn.cuh"
#include "device/gpu/kernels/project_supers.cuh"
#include "device/gpu/kernels/run.h"
#include "device/gpu/kernels/run_mixer.cuh"

namespace tessera::gpu {
namespace {

using run::kCols, run::kValues, run::kSupers, run::kWorkers;

constexpr int kRanks = 8, kWarps = 16;
constexpr int kTeams = kWorkers / kRanks;
constexpr int kUnitSums = kPlainRows * kDecodeRows;  // of a unit of the router's rows
static_assert(kWarps * kSuperCols == kValues && kSupers == kRanks && kDecodeRows == kRanks);
static_assert(kWorkers * kTileRows == kCols && kRanks == run::kRouteParts);
// A row rounded by each of the first teams; half of a warp's lanes await sums, half squares.
static_assert(kTeams >= kDecodeRows && 2 * kUnitSums == kWarp);

struct RouteArgs {
  SuperArgs out, router;
  std::byte* passed;
};

struct RouteShared {
  char rows[kDecodeRows * super_row_bytes(kWarps)];
  float sums[kWarps][kTileRows * kDecodeRows];
  float4 x[kDecodeRows][2][kWarp];  // the block's columns of the residual, normed but for 1 / rms
};

#ifdef TESSERA_GPU_WGMMA

// Warps of the second eight have units behind those of the first.
__device__ __forceinline__ int unit_of(int team, int warp) {
  return (warp / kRanks * kTeams + team) * kRanks + warp % kRanks;
}

// A warp's super-block of the tile with all rows.
template <BlockType kType>
__device__ __forceinline__ void multiply(const SuperArgs& args, const RawSuper& raw, int warp,
                                         int lane, RouteShared& s) {
  copy_super(args, 0, args.rows, warp, warp, lane, s.rows);
  __syncwarp();
  EightSums sums;
  dot_super<kType>(raw, s.rows + warp * kSuperBytes, args.room.row_bytes, lane, sums);
  put_sums(sums, lane, s.sums[warp]);
}

// Of a unit's sums, or a row's squares, the parts of all blocks of the team, in their order.
__device__ __forceinline__ float await_parts(const run::Value* parts, unsigned number) {
  const auto* at = reinterpret_cast<const run::Record*>(parts);
  run::Record v[kRanks / 2];
  bool here = false;
  for (int looks = 0; !__all_sync(0xffffffffu, here); ++looks) {
    if (looks > run::kPatience) run::give_up();
    here = true;
#pragma unroll
    for (run::Record& pair : v) pair = run::look_at(at + (&pair - v));
#pragma unroll
    for (const run::Record& pair : v) here = here && pair.y == number && pair.w == number;
  }
  float sum = 0;
#pragma unroll
  for (const run::Record& pair : v) {
    sum += __uint_as_float(pair.x);
    sum += __uint_as_float(pair.z);
  }
  return sum;
}

// Result i of a unit, by one warp.
__device__ __forceinline__ void finish_unit(const SuperArgs& args, const run::Passed& passed,
                                            int team, int unit, int lane, unsigned number) {
  if (unit >= args.plain_units) return;
  const int i = lane % kUnitSums, column = i % kDecodeRows;
  const Place at = plain_place_of(args, unit);
  const int row = at.tile * kPlainRows + i / kDecodeRows;
  const bool second = lane >= kUnitSums;  // lanes that await the squares
  const int token = min(column, args.rows - 1);
  const run::Value* squares_at = passed.rows_squares() + (team * kDecodeRows + token) * kRanks;
  const run::Value* sums_at = passed.rows_parts() + (unit * kUnitSums + i) * kRanks;
  const float mine = await_parts(second ? squares_at : sums_at, number);
  const float squares = shuffle(mine, kUnitSums + column);
  if (second || column >= args.rows || row >= at.segment->w.rows) return;
  at.segment->out[column * at.segment->stride + row] =
      __fmul_rn(mine, inverse_root(squares / static_cast<float>(args.in.cols) + args.in.eps));
}
#endif

template <BlockType kType>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    route_kernel(const TESSERA_GRID_CONSTANT RouteArgs args) {
#ifdef TESSERA_GPU_WGMMA
  TESSERA_DYNAMIC_SHARED(char, memory);
  RouteShared& s = *reinterpret_cast<RouteShared*>(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int tile = static_cast<int>(blockIdx.x), team = tile / kRanks, rank = tile % kRanks;
  const int n = args.out.rows;
  const Segment& residual = args.out.segments[0];
  RawSuper raw;
  load_super<kType>(raw, residual.w, tile, warp, lane);
  const int unit = unit_of(team, warp);
  const bool routes = unit < args.router.plain_units;
  Eight w[kPlainRows] = {};
  if (routes) {
    const Place at = plain_place_of(args.router, unit);
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r)
      w[r] = plain_eight(at.segment->w, at.tile * kPlainRows + r, rank, lane);
  }
  const Eight weight = super_weight(args.router.in, rank, lane);
  chain_wait();
  chain_trigger();
  const run::Passed passed{args.passed};
  const unsigned number = *passed.rows_run() + 1;
  const int row = tile * kTileRows + thread / kDecodeRows, token = thread % kDecodeRows;
  const bool owns = thread < kTileRows * kDecodeRows && token < n;
  float* own = residual.out + token * residual.stride + row;
  const float before = owns ? *own : 0.0f;
  multiply<kType>(args.out, raw, warp, lane, s);
  __syncthreads();
  if (owns) {
    float sum = 0;
#pragma unroll
    for (int part = 0; part < kWarps; ++part) sum += s.sums[part][thread];
    sum += before;
    *own = sum;
    run::pass_value(passed.rows_middle(token) + run::row_place(static_cast<unsigned>(row)), sum,
                    number);
  }
  __syncwarp();

  Eight x{};
  float squares = 0;
  if (warp < n) {
    const InputSuper read{run::await_eight(passed.rows_middle(warp), rank, lane, number), {}};
    x = normed_input(args.router.in, read, weight, squares);
    squares = sum_of_groups(squares);
    if (lane == 0)
      run::pass_value(passed.rows_squares() + (team * kDecodeRows + warp) * kRanks + rank, squares,
                      number);
  }
  if (warp < kDecodeRows) s.x[warp][0][lane] = x.low, s.x[warp][1][lane] = x.high;
  __syncthreads();
  if (routes) {
    float of[kUnitSums] = {};
#pragma unroll
    for (int j = 0; j < kDecodeRows; ++j) {
      const Eight column = {s.x[j][0][lane], s.x[j][1][lane]};
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r)
        of[r * kDecodeRows + j] = dot_eight(w[r], column, of[r * kDecodeRows + j]);
    }
    constexpr int kLanes = kWarp / kUnitSums;
    const float all = spread_sums(of, lane);
    if (lane % kLanes == 0)
      run::pass_value(passed.rows_parts() + (unit * kUnitSums + lane / kLanes) * kRanks + rank,
                      all, number);
  }
  // Rows are rounded by the first teams, a row each.
  if (warp == team && warp < n) {
    char* to = rounded_row(args.router.rounded, kCols, warp);
    round_super(x, 1.0f, lane, to + rank * kSuperBytes);
    if (lane == 0) rounded_squares(to, kCols)[rank] = squares;
  }
  __syncwarp();
  // By warps that round nothing.
  if (warp >= kWarps - 2)
    finish_unit(args.router, passed, team, unit_of(team, (kWarps - 1 - warp) * kRanks + rank), lane,
                number);
#elif defined(TESSERA_GPU_PTX)
  __trap();  // FfnArgs::passed is given where has_runs() says yes
#endif
}

}  // namespace

GpuError project_and_route(const Launch& launch, const ProjectArgs& out, const FfnArgs& ffn) {
  if (!routes(out, ffn)) return TESSERA_GPU_API(ErrorInvalidValue);
  auto* rows = static_cast<std::byte*>(launch.workspace);
  const GpuError error = round_rows(launch, out.input, out.rows, rows);
  if (error != GpuError{}) return error;
  const FfnScratch scratch = routed_scratch(ffn);
  RouteArgs args{.passed = ffn.passed};
  args.out.in = out.input;
  args.out.rows = args.router.rows = out.rows;
  args.out.supers = kWarps;
  args.out.room = super_room(kWarps, kDecodeRows);
  args.out.rounded = rows;
  const Output& to = out.outputs[0];
  args.out.segments[0] = {planes_of(to.w), to.out, to.stride, true, kWorkers};
  args.router.in = ffn_input(ffn, ffn.norm);
  args.router.supers = kSupers;
  args.router.rounded = scratch.x_rounded;
  const int experts = (ffn.moe.n_expert + kPlainRows - 1) / kPlainRows;
  args.router.plain_units = experts + 1;
  args.router.segments[0] = {planes_of(ffn.moe.router_weight), ffn.moe.logits, ffn.moe.n_expert,
                             false, experts};
  args.router.segments[1] = {planes_of({BlockType::F32, 1, kCols,
                                        reinterpret_cast<const std::byte*>(ffn.dense.scalar_gate)}),
                             scratch.dense_gate, 1, false, experts + 1};
  const auto kernel = to.w.type == BlockType::Q4_K ? route_kernel<BlockType::Q4_K>
                                                   : route_kernel<BlockType::Q6_K>;
  return launch_kernel(launch, kernel, dim3(kWorkers), dim3(kWarps * kWarp), sizeof(RouteShared),
                       args);
}

}  // namespace tessera::gpu
