#include "device/gpu/kernels/dense_run.h"

#include <bit>

#include "device/gpu/kernels/dense_run_rows.cuh"
#include "device/gpu/kernels/dense_run_settle.cuh"
#include "device/gpu/kernels/ffn.cuh"

namespace tessera::gpu {
namespace dense_run {
namespace {

#ifdef TESSERA_GPU_WGMMA

// --- What a tile's sums come to ---

// Of a row of the block's tile: `turns` sums in their order.
__device__ __forceinline__ float sum_of(int sum, int turns, int row) {
  const float(*at)[kTileRows] = shared()->sums + sum;
  float all = 0;
#pragma unroll 4
  for (int i = 0; i < turns; ++i) all += at[i][row];
  return all;
}
// Each half of the columns by itself, as blocks of a team would have them: the first one's sums by
// the lower lanes, the second one's by the upper lanes, a row each. Of a half that the block does
// not have, what stands there, which nobody takes.
struct Halves {
  float first, second;  // of the lower lanes
  __device__ __forceinline__ Halves(int sum, int turns, int lane)
      : first(sum_of(sum + lane / kTileRows * (turns / 2), turns / 2, lane % kTileRows)),
        second(shuffle_xor(first, kTileRows)) {}
};
// The same by one lane, where all have a row.
__device__ __forceinline__ float total_of(int sum, int turns, int row) {
  const float first = sum_of(sum, turns / 2, row);
  return first + sum_of(sum + turns / 2, turns / 2, row);
}
// 1 / rms of the residual.
static __device__ __noinline__ float residual_factor(int supers, float eps) {
  constexpr int kFours = kMostEmbd / 4;
  static_assert(kMostEmbd % 4 == 0 && kLeastSupers % 4 == 0);
  const auto* squares = reinterpret_cast<const float4*>(shared()->squares);
  float4 v[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) v[i] = squares[i];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kFours; ++i)
    if (4 * i < supers) sum = sum + v[i].x + v[i].y + v[i].z + v[i].w;
  return inverse_root(sum / static_cast<float>(supers * kSuperCols) + eps);
}

struct Tile {
  int stage, local, tile, columns;
  unsigned number;
};

__device__ __forceinline__ void end_in(const Layer& l, const Tile& t, int embd, int lane) {
  const int turns = embd / kTogether;
  const Halves sums(kOutSums + t.local * turns, turns, lane);
  const float factor = residual_factor(embd, l.eps);
  if (lane >= kTileRows) return;
  run::pass_value(values(kAt.in) + t.tile * kTileRows + lane,
                  __fmul_rn(sums.first + sums.second, factor), t.number);
}
__device__ __forceinline__ void end_residual(const Tile& t, int supers, bool stores, int lane) {
  const int turns = supers / kTogether;
  Halves sums(t.local * turns, turns, lane);
  if (lane >= kTileRows) return;
  Value* other = values(kAt.halves) + t.tile % kBlocks * kTileRows + lane;
  if (t.columns == kFirstHalf) {
    run::pass_value(other, sums.first, t.number);
    return;
  }
  if (t.columns == kSecondHalf) sums.first = run::await_value(other, t.number);
  const int row = t.tile * kTileRows + lane;
  float& mine = shared()->mine[t.local][lane];
  mine = sums.first + sums.second + mine;
  run::pass_value(values(t.stage == kOut ? kAt.middle : kAt.residual) +
                      run::row_place(static_cast<unsigned>(row)),
                  mine, t.number);
  if (stores) shared()->hidden[row] = mine;
}
__device__ __forceinline__ void end_up(const Layer& l, const Shape& of, const Tile& t, int lane) {
  const int turns = of.embd / kTogether;
  const float factor = residual_factor(of.embd, l.eps);
  const bool group = t.local < 4 * of.up_rounds;
  const int first = group ? t.local / 4 * 4 + lane / kTileRows * 2 : t.local / 2 * 2;
  const auto total = [&](int local) {
    return total_of(kOutSums + local * turns, turns, lane % kTileRows) * factor;
  };
  const float value = activated(Activation::silu, total(first), total(first + 1));
  if (group) {
    const int index = static_cast<int>(blockIdx.x) + t.local / 4 * kBlocks;
    run::pass_group_here(value, 0, t.number, lane, records(kAt.hidden) + index * 4);
  } else if (lane < kTileRows) {
    const int row = (t.tile - 2 * kBlocks * of.up_rounds) * kTileRows + lane;
    run::pass_value(values(kAt.left) + run::row_place(static_cast<unsigned>(row)), value,
                    t.number);
  }
}
static __device__ __noinline__ void end_tile(const Args& args, int layer, int stage, int local,
                                             int tile, int columns, int lane) {
  const Layer& l = LayerPlace(layer).layer();
  const Shape& of = shared()->shape;
  const Tile t{stage, local, tile, columns, number_of(layer)};
  if (t.stage == kIn)
    end_in(l, t, of.embd, lane);
  else if (t.stage == kUp)
    end_up(l, of, t, lane);
  else
    end_residual(t, t.stage == kOut ? of.mixed : of.hidden,
                 t.stage == kDown && layer + 1 == args.run.n_layers, lane);
}

// --- Products ---

// The sum of two super-blocks of the entry at `at`, for the row's when they are there. The entry's
// room is given back by `arrivals`.
template <BlockType kType>
__device__ __forceinline__ float turn_sum(const Work& work, int turn, std::uint32_t at,
                                          std::uint32_t empty, int arrivals, unsigned phase,
                                          int lane) {
  const std::uint32_t row = row_address(work.row + turn * kTogether);
  const std::uint32_t part = shared_address(&shared()->parts[work.part]);
  const auto release = [&] {
    __syncwarp();
    if (lane == 0) arrive(empty, arrivals);
  };
  RowSums sums;
  RawSuper raw[2];
  run::load_super_here<kType>(raw[0], at, work.supers, turn * kTogether, lane);
  if constexpr (kType == BlockType::Q4_K) {
    run::load_super_here<kType>(raw[1], at, work.supers, turn * kTogether + 1, lane);
    release();
    await_barrier(part, phase);
    const auto first = run::row_part_here<kType>(row, lane);
    const auto second = run::row_part_here<kType>(row + kSuperBytes, lane);
    dot_super<kType>(raw[0], first, lane, sums);
    dot_super<kType>(raw[1], second, lane, sums);
  } else {
    await_barrier(part, phase);
    dot_super<kType>(raw[0], run::row_part_here<kType>(row, lane), lane, sums);
    run::load_super_here<kType>(raw[0], at, work.supers, turn * kTogether + 1, lane);
    release();
    dot_super<kType>(raw[0], run::row_part_here<kType>(row + kSuperBytes, lane), lane, sums);
  }
  return sums.own_total(lane);
}

// The calling warp's sum is there. Whoever has a tile's, or a group's, last turn waits for the
// others', which are about to come: the rest need not know.
__device__ __forceinline__ void sum_there(const Work& work, int arrivals, int lane) {
  __syncwarp();
  if (lane == 0) arrive(shared_address(&shared()->tiles[work.counter]), arrivals);
}
// Who ends the next layer's tile reads the round: that layer's rows are made of what was passed
// behind this.
__device__ __forceinline__ void await_tile(const Work& work, int lane) {
  const unsigned round = shared()->rounds[work.counter];
  await_barrier(shared_address(&shared()->tiles[work.counter]), round & 1);
  __syncwarp();
  if (lane == 0) shared()->rounds[work.counter] = round + 1;
}

__device__ __forceinline__ void multiply(const Args& args, int warp, int lane) {
  Shared* s = shared();
  unsigned taken = 0;  // entries of the ring, of the layers before
#pragma unroll 1
  for (int n = 0; n < args.run.n_layers; ++n) {
    await_description(n);
    const Schedule& schedule = LayerPlace(n).schedule();
    const auto phase = static_cast<unsigned>(n) & 1u;  // how often its parts were there before
    const std::uint16_t* at = schedule.items[warp];
#pragma unroll 1
    for (int next = *at; next != kNoItem;) {
      const int entry = next & 255, turn = next >> 8;
      next = *++at;  // there before it is needed
      const Work work =
          std::bit_cast<Work>(run::load_shared<uint4>(shared_address(schedule.work + entry)));
      const unsigned index = taken + static_cast<unsigned>(entry), slot = index % kSlots;
      await_barrier(shared_address(&s->full[slot]), (index / kSlots) & 1);
      const std::uint32_t bytes = address_of(s->offset[slot]);
      const std::uint32_t empty = shared_address(&s->empty[slot]);
      // An entry of few turns is left as often as one of many.
      const bool last = turn + 1 == work.turns, ends = last && work.ends != 0;
      const int arrivals = last ? kMostTurns - turn : 1;
      const float sum =
          work.six != 0
              ? turn_sum<BlockType::Q6_K>(work, turn, bytes, empty, arrivals, phase, lane)
              : turn_sum<BlockType::Q4_K>(work, turn, bytes, empty, arrivals, phase, lane);
      run::put_sum(sum, lane, s->sums[work.sum + turn]);
      sum_there(work, ends ? work.ends : 1, lane);
      if (!ends) continue;
      await_tile(work, lane);
      end_tile(args, n, work.stage, work.local, work.tile, work.columns, lane);
    }
    taken += static_cast<unsigned>(schedule.n);
    leave_layer(n, lane);
  }
}

__device__ __forceinline__ void init(const Args& args) {
  Shared* s = shared();
  for (unsigned i = 0; i < kSlots; ++i) {
    barrier_init(shared_address(&s->full[i]), 1);
    barrier_init(shared_address(&s->empty[i]), kMostTurns);
  }
  const Shape& of = *reinterpret_cast<const Shape*>(args.run.plans);
  s->shape = of;
  for (int i = 0; i < kPartsOfRows; ++i)
    barrier_init(shared_address(&s->parts[i]), max(1, of.arrivals[i]));
  for (std::uint64_t& barrier : s->tiles) barrier_init(shared_address(&barrier), kTileArrivals);
  for (unsigned& round : s->rounds) round = 0;
  for (std::uint64_t& barrier : s->described) barrier_init(shared_address(&barrier), 1);
  for (std::uint64_t& barrier : s->left) barrier_init(shared_address(&barrier), kThreads / kWarp);
  barrier_init(shared_address(&s->logged_here), 1);
  s->logs = 0;
  for (std::uint64_t& barrier : s->mixer.begun) barrier_init(shared_address(&barrier), 1);
  s->mixer.steps = 0;
  barriers_ready();
  // There: what stands between this kernel and the one that brings inputs has waited for it.
  s->sequence = args.run.sequences[0];
  s->passed = args.run.passed, s->hidden = args.run.hidden;
  s->log = reinterpret_cast<Log*>(args.run.log);
}

#endif

__global__ void __launch_bounds__(kThreads, 1)
    dense_run_kernel(const TESSERA_GRID_CONSTANT Args args) {
#ifdef TESSERA_GPU_WGMMA
  const int warp = run::this_warp(), lane = run::this_lane();
  if (threadIdx.x == 0) init(args);
  __syncthreads();
  chain_trigger();  // what follows finds room when blocks of this kernel end
  auto* runs = reinterpret_cast<unsigned*>(args.run.passed + kAt.run);
  if (warp == kRowWarps) {
    feed_all(args, lane);
  } else {
    chain_wait();
    // Not zero, as what was never passed: the host clears all ahead of that. Number 0 of the run is
    // the row's before its first layer.
    if (threadIdx.x == 0) shared()->number = (*runs + 1) * (kMostDenseLayers + 1) + 1;
    asm volatile("bar.sync 2, %0;" ::"n"(kThreads - kWarp) : "memory");
    if (warp < kRowWarps)
      bring_rows(args.run.n_layers);
    else
      multiply(args, warp - 1 - kRowWarps, lane);
  }
  // Every block has read the number: each has contributed to what this one has read.
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0)
    *runs = shared()->number / (kMostDenseLayers + 1);
#elif defined(TESSERA_GPU_PTX)
  __trap();  // has_dense_runs() says no
#endif
}

}  // namespace
}  // namespace dense_run

bool has_dense_runs(const Launch& launch) {
#if defined(TESSERA_GPU_HIP) || defined(TESSERA_GPU_EMULATED)
  (void)launch;
  return false;
#else
  cudaFuncAttributes attributes{};
  return launch.chained && launch.gemm && launch.multiprocessors == dense_run::kBlocks &&
         shared_limit(launch) >= static_cast<std::size_t>(dense_run::kSharedBytes) &&
         cudaFuncGetAttributes(&attributes, dense_run::dense_run_kernel) == cudaSuccess &&
         attributes.binaryVersion == 90;
#endif
}

GpuError run_dense(const Launch& launch, const DenseRunArgs& args) {
  if (args.n_layers < 1 || args.n_layers > kMostDenseLayers || args.first < 0 ||
      args.first + args.n_layers > args.places)
    return TESSERA_GPU_API(ErrorInvalidValue);
  return launch_kernel(launch, dense_run::dense_run_kernel, dim3(dense_run::kBlocks),
                       dim3(dense_run::kThreads), dense_run::kSharedBytes,
                       dense_run::Args{args, args.plans + dense_run::schedules_at(args.places)});
}

GpuError settle_dense(const Launch& launch, const std::byte* plans, int places, float* log,
                      int slot) {
  using namespace dense_run;
  return launch_kernel(launch, settle_kernel, dim3(kBlocks, static_cast<unsigned>(places)),
                       dim3(kRowWarps * kWarp), 0,
                       reinterpret_cast<const Layer*>(plans + layers_at()),
                       reinterpret_cast<Log*>(log), slot);
}

}  // namespace tessera::gpu
