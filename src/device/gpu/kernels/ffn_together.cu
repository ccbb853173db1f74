// The FFN of 2 to 8 rows behind the router as one kernel: choice, gate and up, down, sum.
//
// Of eight rows' 64 choices some 57 are different experts: 105 MB in Q4_K with the dense branch,
// 23 us at 4.6 TB/s. As two kernels it takes 46: loads to registers reach 3.7 TB/s, each pair reads
// its expert again, and between the two memory is idle. Here a block stays on each multiprocessor;
// one of its warps copies what the others multiply with into a ring in shared memory, an expert
// once for all rows that chose it, and hidden activations pass from block to block as in a run
// (run_values.cuh), while down's weights are on their way. Two blocks of a cluster share two tiles
// of the residual and take about half of the experts each: copies are twice as long, and half as
// many.
// Clusters of two find room wherever their blocks do: multiprocessors come in pairs. Then, where
// they are asked for, the projections of the layer behind (ffn_next.cuh).
//
// 544 threads have 96 registers each, and shared memory leaves 28 KB of L1: what a thread keeps in
// local memory comes from L2. 196 bytes of it made gate and up take 48 us in place of 24. So
// weights are not kept, nor is what warps seldom need.
//
// Arithmetic and the order of sums are those of ffn_hidden_supers.cu and ffn_output_supers.cu.
#include "device/gpu/kernels/ffn_choice.cuh"
#include "device/gpu/kernels/ffn_feeder.cuh"
#include "device/gpu/kernels/ffn_next.cuh"

#include <algorithm>

#include "device/gpu/kernels/run.h"

namespace tessera::gpu {
namespace together {
namespace {

#ifdef TESSERA_GPU_WGMMA

// The product of a warp's super-block of a pair of tiles with one of a row. kSix: may be Q6_K; else
// it is Q4_K.
template <bool kSix>
__device__ __forceinline__ float dot_entry(BlockType type, std::uint32_t supers, int warp,
                                           std::uint32_t row, int lane) {
  RawSuper raw;
  if (!kSix || type == BlockType::Q4_K) {
    load_super_here<BlockType::Q4_K>(raw, supers, kPairSupers, warp, lane);
    return dot_here<BlockType::Q4_K>(raw, row, lane);
  }
  load_super_here<BlockType::Q6_K>(raw, supers, kPairSupers, warp, lane);
  return dot_here<BlockType::Q6_K>(raw, row, lane);
}

__device__ __forceinline__ int lowest(unsigned rows) {
  return __ffs(static_cast<int>(rows)) - 1;
}

// Of a unit's activations those of one row, by one warp, to their records.
__device__ __forceinline__ void pass_hidden(int row, const Shares (&shares)[2], int lane,
                                            Record* to) {
  const float factor = memory()->factor[row];
  const float gate = pair_total(shares[0], lane) * factor;
  const float up = pair_total(shares[1], lane) * factor;
  pass_group_here(silu(gate) * up, 0.0f, reading().number, lane, to);
}

// 32 hidden activations of an expert, or of the dense branch, for the rows that chose it.
struct Unit {
  int pair;  // of tiles
  Chosen chosen;
  bool dense;
  __device__ __forceinline__ int slot(int row) const { return dense ? kUsed : chosen.slot(row); }
};
template <bool kSix>
__device__ __forceinline__ void unit_of(const Unit& unit, int& pass) {
  TogetherShared* s = memory();
  const int warp = this_warp(), lane = this_lane();
  const BlockType gate_type = unit.dense ? s->job.dense_gate : s->job.gate;
  const BlockType up_type = unit.dense ? s->job.dense_up : s->job.up;
  const std::uint32_t gate = take(0), up = take(1);
#pragma unroll 1
  for (unsigned rows = unit.chosen.rows(); rows != 0; ++pass) {
    auto& shares = s->shares[pass % 2];
    int k = 0;
    unsigned left = rows;
    // Weights are read again for each row: most experts have one, and of weights that it may keep
    // the compiler makes all that does not depend on the row ahead, into local memory.
#pragma unroll 1
    for (; left != 0 && k < kRowsAtOnce; left &= left - 1, ++k) {
      const std::uint32_t row =
          shared_address(s->x) +
          static_cast<std::uint32_t>(lowest(left) * static_cast<int>(rounded_row_bytes(kCols)) +
                                     warp % kSupers * kSuperBytes);
      put_sum(dot_entry<kSix>(gate_type, gate, warp, row, lane), lane, shares[k][0][warp]);
      put_sum(dot_entry<kSix>(up_type, up, warp, row, lane), lane, shares[k][1][warp]);
    }
    if (left == 0) give(), give();
    readers_sync();
    // Another warp each time: nobody waits for who passes the last ones on.
    const int own = (warp - pass * kRowsAtOnce) & (kReaders - 1);
    if (own < k) {
      unsigned mine = rows;
      for (int i = 0; i < own; ++i) mine &= mine - 1;
      const int row = lowest(mine);
      pass_hidden(row, shares[own], lane, hidden_of(row, unit.slot(row)) + unit.pair * 4);
    }
    rows = left;
  }
}
template <bool kSix>
static __device__ __noinline__ void gate_and_up() {
  const Units units(memory()->job.rows);
  const int n = memory()->n_chosen * kPairs;
  int pass = 0;
  // One copy of the products: the dense unit is number -1.
#pragma unroll 1
  for (int at = units.has_dense() ? -1 : units.first; at < n;
       at = at < 0 ? units.first : units.next(at)) {
    const bool dense = at < 0;
    const Chosen chosen = dense ? Chosen{0, all_rows()} : memory()->list[at / kPairs];
    unit_of<kSix>({dense ? units.place : at % kPairs, chosen, dense}, pass);
  }
}

// One super-block of activations and what it is multiplied with.
struct DownWork {
  std::uint32_t supers;  // of both tiles: super-block `half` is theirs
  int half;
  Chosen chosen;
  bool dense;
};
// Super-block `half` of an expert's, or the dense branch's, activations of the rows that chose it
// times both tiles of the cluster. Weights are read again for each row: most have one, and two
// tiles' are more than the registers hold.
template <BlockType kType>
__device__ __noinline__ void down_of(DownWork work, const Record* hidden, unsigned number) {
  TogetherShared* s = memory();
  const int lane = this_lane();
  char* branch = s->branch[this_warp()];
  const auto slot_of = [&](int row) { return work.dense ? kUsed : work.chosen.slot(row); };
  const auto place_of = [&](int row) {
    return hidden + (row * kBranches + slot_of(row)) * (kPairs * 4) + work.half * kWarp + lane;
  };
  unsigned rows = work.chosen.rows();
  const Record* place = place_of(lowest(rows));
  Record v = look_at(place);
#pragma unroll 1
  while (rows != 0) {
    const int row = lowest(rows), slot = slot_of(row);
    for (int looks = 0; !__all_sync(0xffffffffu, v.w == number); v = look_at(place))
      if (++looks > kPatience) give_up();
    const auto sums = static_cast<int>(shuffle(v.z, (lane & 28) + 1));
    put_group({v.x, v.y, __uint_as_float(v.z), sums}, 1.0f, lane & 3, lane >> 2, branch);
    rows &= rows - 1;
    if (rows != 0) place = place_of(lowest(rows)), v = look_at(place);
    __syncwarp();
    const RowPart<kType> part = row_part_here<kType>(shared_address(branch), lane);
    const float weight = s->weights[row][slot];
    const int g = lane / 4, t = lane % 4;
    float* to = &s->branch_shares[row / kRanks][slot * 2 + work.half][g + t * 8];
#pragma unroll 1
    for (int tile = 0; tile < kRanks; ++tile) {
      RawSuper raw;
      load_super_here<kType>(raw, work.supers, kDownSupers, tile * 2 + work.half, lane);
      RowSums of;
      dot_super<kType>(raw, part, lane, of);
      const float sum = of.own_total(lane) * weight;
      if (t < 2) store_in(row % kRanks, to + tile * kTileRows, sum);
    }
  }
}

// A warp a super-block, one after the other; the dense branch's, which every row has, a warp two
// rows.
__device__ __forceinline__ void down() {
  TogetherShared* s = memory();
  const Job& job = s->job;
  const Record* hidden = hidden_of(0, 0);
  int taken = 0;  // warps that have work
  const auto own = [&] { return (this_warp() - taken) & (kReaders - 1); };
  const auto work_on = [&](BlockType type, const DownWork& work) {
    if (type == BlockType::Q4_K)
      down_of<BlockType::Q4_K>(work, hidden, reading().number);
    else
      down_of<BlockType::Q6_K>(work, hidden, reading().number);
  };
  if (has_dense_down()) {
    const std::uint32_t at = take();
    const int i = own();
    const unsigned rows = all_rows() & 3u << (i & ~1);
    if (i < kDecodeRows && rows != 0) work_on(job.dense_down, {at, i % 2, {0, rows}, true});
    give();
    taken += kDecodeRows;
  }
  const int expert_bytes = kDownSupers * super_bytes(job.down);
  const DownShare share(s->n_chosen);
#pragma unroll 1
  for (int u = share.first; u < share.end; u += job.down_together) {
    const int count = min(job.down_together, share.end - u);
    const std::uint32_t at = take();
    const int k = own() / 2;
    if (k < count)
      work_on(job.down, {at + static_cast<std::uint32_t>(k * expert_bytes), own() % 2,
                         s->list[u + k], false});
    give();
    taken += 2 * count;
  }
}

// What the products of a row are multiplied with: 1 / rms, and of the dense branch's its weight.
__device__ __forceinline__ void row_factors(const TogetherArgs& args, int row) {
  TogetherShared* s = memory();
  s->weights[row][kUsed] = sigmoid(args.scalar_gate[row]);
  const float* squares = rounded_squares(s->x + row * rounded_row_bytes(kCols), kCols);
  float sum = 0;
  for (int i = 0; i < kSupers; ++i) sum += squares[i];
  s->factor[row] = inverse_root(sum / static_cast<float>(kCols) + args.ffn.eps);
}

// Code that was never run is fetched when it is needed, while all wait for it. So a warp that has
// nothing to do until the experts are known runs the products behind, with what shared memory
// happens to hold, whoever writes it meanwhile. Its sums go where the second pass of gate and up
// writes, behind a barrier that this warp has to reach first; no other block writes there.
constexpr int kFetchesCode = kReaders - 2;
static_assert(kFetchesCode > kDecodeRows && kFetchesCode < kReaders - 1);  // see read_all()
__device__ __forceinline__ void fetch_next_code() {
  Shares& sums = memory()->shares[1][0][0];
  static_assert(sizeof(Shares) >= sizeof(float) * kNextSums);
  float* to = &sums[0][0];
  next_sums<BlockType::Q4_K>(address_of(0), this_warp(), to);
  next_sums<BlockType::Q6_K>(address_of(0), this_warp(), to);
}

template <bool kSix, bool kNext>
__device__ __forceinline__ void read_all(const TogetherArgs& args, int warp, int lane) {
  TogetherShared* s = memory();
  if (kNext && warp == kFetchesCode) fetch_next_code();
  chain_wait();
  unsigned* const last = Passed{args.ffn.passed}.rows_run();
  const unsigned number = *last + 1;
  reading() = {0, 0, number};
  // The cluster's columns of a row, one a lane.
  const int row = warp * kRanks + static_cast<int>(blockIdx.x) % kRanks;
  const bool owns = has_tile() && row < args.ffn.rows;
  float* own = args.ffn.hidden + row * kCols + cluster() * kGroup + lane;
  const float before = owns ? *own : 0.0f;
  if (warp < kDecodeRows)
    choose(args.ffn, warp, lane);
  else if (kNext && warp == kDecodeRows)
    describe_next(args, lane);
  await_barrier(shared_address(&s->rows_here), 0);
  if (warp == kReaders - 1 && lane < args.ffn.rows) row_factors(args, lane);
  await_barrier(shared_address(&s->chosen), 0);
  __syncwarp();
  gate_and_up<kSix>();
  __syncwarp();
  cluster_await();
  if (has_tile()) down();
  __syncwarp();
  cluster_arrive();
  cluster_await();
  if (owns) {
    float total = 0;
#pragma unroll 6
    for (const auto& share : s->branch_shares[row / kRanks]) total += share[lane];
    total += before;
    *own = total;
    if constexpr (kNext)
      pass_columns(total, lane, next_of(row, cluster()));
  }
  __syncwarp();
  if constexpr (kNext) project_next();
  // Every block has a unit, so it has passed something on that this cluster has read: it knows the
  // number.
  if (blockIdx.x == 0 && threadIdx.x == 0) *last = number;
}

template <bool kNext>
static __device__ __noinline__ void feed_all(const TogetherArgs& args) {
  Feeder feeder(args, this_lane());
  feeder.feed();
  __syncwarp();
  cluster_await();
  cluster_arrive();
  if constexpr (kNext) feeder.feed_next();
  __syncwarp();
  cluster_await();
}

#endif

template <bool kSix, bool kNext>
__global__ void TESSERA_CLUSTER(kRanks) __launch_bounds__(kThreads, 1)
    together_kernel(const TESSERA_GRID_CONSTANT TogetherArgs args) {
#ifdef TESSERA_GPU_WGMMA
  const int warp = this_warp(), lane = this_lane();
  if (threadIdx.x == 0) init(args);
  load_table(args.ffn.moe, memory()->table);
  if (threadIdx.x < kExperts) memory()->who[threadIdx.x] = 0;
  __syncthreads();
  cluster_arrive();  // the other block writes here only when this one has begun
  chain_trigger();
  if (warp == kReaders) {
    feed_all<kNext>(args);
  } else {
    read_all<kSix, kNext>(args, warp, lane);
  }
#elif defined(TESSERA_GPU_PTX)
  __trap();  // passed is given where has_runs() says yes
#endif
}

}  // namespace
}  // namespace together

GpuError ffn_together(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch,
                      const ProjectArgs* next) {
  using namespace together;
  TogetherArgs args{.ffn = ffn,
                    .gate = source_of(ffn.moe.shape.gate),
                    .up = source_of(ffn.moe.shape.up),
                    .down = source_of(ffn.moe.shape.down),
                    .dense_gate = source_of(ffn.dense.gate),
                    .dense_up = source_of(ffn.dense.up),
                    .dense_down = source_of(ffn.dense.down),
                    .x = scratch.x_rounded,
                    .scalar_gate = scratch.dense_gate};
  if (next != nullptr) args.next = next_args(*next);
  int super = 0;
  for (const Source* in : {&args.gate, &args.up, &args.dense_gate, &args.dense_up})
    super = std::max(super, run::super_bytes(in->type));
  const int slot_bytes = kPairSupers * super;
  const int expert_bytes = kDownSupers * run::super_bytes(args.down.type);
  args.job = {.rows = ffn.rows,
              .slots = std::min(kMostSlots, kTogetherRing / slot_bytes),
              .slot_bytes = slot_bytes,
              .down_together = std::min(kReaders / 2, slot_bytes / expert_bytes),
              .gate = args.gate.type,
              .up = args.up.type,
              .down = args.down.type,
              .dense_gate = args.dense_gate.type,
              .dense_up = args.dense_up.type,
              .dense_down = args.dense_down.type,
              .passed = ffn.passed,
              .next_rows = passed_layout().rows_next,
              .next_eps = next == nullptr ? 0.0f : next->input.eps};
  const bool six = super != run::super_bytes(BlockType::Q4_K);
  const bool leads = args.next.n > 0;
  const auto kernel = six ? (leads ? together_kernel<true, true> : together_kernel<true, false>)
                          : (leads ? together_kernel<false, true> : together_kernel<false, false>);
  return launch_kernel(launch, kernel, dim3(run::kBlocks), dim3(run::kThreads), kTogetherBytes,
                       args);
}

}  // namespace tessera::gpu
