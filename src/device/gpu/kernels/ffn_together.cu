// The FFN of 2 to 8 rows behind the router as one kernel: choice, gate and up, down, sum.
//
// Of eight rows' 64 choices some 57 are different experts: 105 MB in Q4_K with the dense branch,
// 23 us at 4.6 TB/s. As two kernels it takes 46: loads to registers reach 3.7 TB/s, each pair reads
// its expert again, and between the two memory is idle. Here a block stays on each multiprocessor;
// one of its warps copies what the others multiply with into a ring in shared memory, an expert
// once for all rows that chose it, and hidden activations pass from block to block as in a run
// (run_values.cuh), while down's weights are on their way. Two blocks of a cluster share two tiles
// of the residual and take half of the experts each: copies are twice as long, and half as many.
// Clusters of two find room wherever their blocks do: multiprocessors come in pairs.
//
// Arithmetic and the order of sums are those of ffn_hidden_supers.cu and ffn_output_supers.cu.
#include "device/gpu/kernels/ffn_together.cuh"

#include <algorithm>

#include "device/gpu/kernels/run.h"

namespace tessera::gpu {
namespace together {
namespace {

#ifdef TESSERA_GPU_WGMMA

// kSix: may be Q6_K; else it is Q4_K.
template <bool kSix>
__device__ __forceinline__ void load_here(RawSuper& raw, BlockType type, std::uint32_t supers,
                                          int n, int index, int lane) {
  if (!kSix || type == BlockType::Q4_K)
    load_super_here<BlockType::Q4_K>(raw, supers, n, index, lane);
  else
    load_super_here<BlockType::Q6_K>(raw, supers, n, index, lane);
}
// The products of super-blocks of gate and of up with one of a row.
template <bool kSix>
__device__ __forceinline__ float2 dot_two(BlockType first_type, const RawSuper& first,
                                          BlockType second_type, const RawSuper& second,
                                          std::uint32_t row, int lane) {
  if (!kSix || (first_type == BlockType::Q4_K && second_type == BlockType::Q4_K)) {
    constexpr BlockType kType = BlockType::Q4_K;
    const RowPart<kType> part = row_part_here<kType>(row, lane);
    RowSums sums[2];
    dot_super<kType>(first, part, lane, sums[0]);
    dot_super<kType>(second, part, lane, sums[1]);
    return {sums[0].own_total(lane), sums[1].own_total(lane)};
  }
  const auto one = [&](BlockType type, const RawSuper& raw) {
    return type == BlockType::Q4_K ? dot_here<BlockType::Q4_K>(raw, row, lane)
                                   : dot_here<BlockType::Q6_K>(raw, row, lane);
  };
  return {one(first_type, first), one(second_type, second)};
}

// What a reading warp has in hand.
struct Reader {
  const TogetherArgs& args;
  int warp, lane;
  unsigned number;  // of the launch, for run_values.cuh
  Turn turn{};

  // The next entry, when it is there: its address.
  __device__ __forceinline__ std::uint32_t take() const {
    await_barrier(shared_address(&memory()->full[turn.slot]), turn.phase);
    return address_of(turn.slot * args.slot_bytes);
  }
  __device__ __forceinline__ void give() {
    __syncwarp();
    if (lane == 0) arrive(shared_address(&memory()->empty[turn.slot]));
    turn.next(args.slots);
  }
  // Of hidden activations: a row's slot, in the last place the dense branch.
  __device__ __forceinline__ Record* hidden(int row, int slot) const {
    return Passed{args.ffn.passed}.rows_h() + (row * kBranches + slot) * (kPairs * 4);
  }
};

// Who chose an expert, or of the dense branch every row.
__device__ __forceinline__ unsigned all_rows(const TogetherArgs& args) {
  return (1u << args.ffn.rows) - 1;
}
__device__ __forceinline__ int lowest(unsigned rows) {
  return __ffs(static_cast<int>(rows)) - 1;
}

// Of a unit's activations those of one row, by one warp, to their records.
__device__ __forceinline__ void pass_hidden(const Reader& r, int row, const Shares (&shares)[2],
                                            Record* to) {
  const float factor = memory()->factor[row];
  const float gate = pair_total(shares[0], r.lane) * factor;
  const float up = pair_total(shares[1], r.lane) * factor;
  pass_group_here(silu(gate) * up, 0.0f, r.number, r.lane, to);
}

// 32 hidden activations of an expert, or of the dense branch, for the rows that chose it.
struct Unit {
  int pair;  // of tiles
  Chosen chosen;
  bool dense;
  __device__ __forceinline__ int slot(int row) const { return dense ? kUsed : chosen.slot(row); }
};
template <bool kSix>
__device__ __forceinline__ void unit_of(Reader& r, const Unit& unit, int& pass) {
  TogetherShared* s = memory();
  const TogetherArgs& args = r.args;
  const BlockType gate_type = unit.dense ? args.dense_gate.type : args.gate.type;
  const BlockType up_type = unit.dense ? args.dense_up.type : args.up.type;
  RawSuper gate, up;
  load_here<kSix>(gate, gate_type, r.take(), kPairSupers, r.warp, r.lane);
  r.give();
  load_here<kSix>(up, up_type, r.take(), kPairSupers, r.warp, r.lane);
  r.give();
#pragma unroll 1
  for (unsigned rows = unit.chosen.rows(); rows != 0; ++pass) {
    auto& shares = s->shares[pass % 2];
    int k = 0;
    unsigned left = rows;
#pragma unroll 1
    for (; left != 0 && k < kRowsAtOnce; left &= left - 1, ++k) {
      const std::uint32_t row =
          shared_address(s->x) +
          static_cast<std::uint32_t>(lowest(left) * static_cast<int>(rounded_row_bytes(kCols)) +
                                     r.warp % kSupers * kSuperBytes);
      const float2 sums = dot_two<kSix>(gate_type, gate, up_type, up, row, r.lane);
      put_sum(sums.x, r.lane, shares[k][0][r.warp]);
      put_sum(sums.y, r.lane, shares[k][1][r.warp]);
    }
    readers_sync();
    // Another warp each time: nobody waits for who passes the last ones on.
    const int own = (r.warp - pass * kRowsAtOnce) & (kReaders - 1);
    if (own < k) {
      unsigned mine = rows;
      for (int i = 0; i < own; ++i) mine &= mine - 1;
      const int row = lowest(mine);
      pass_hidden(r, row, shares[own], r.hidden(row, unit.slot(row)) + unit.pair * 4);
    }
    rows = left;
  }
}
template <bool kSix>
__device__ __noinline__ void gate_and_up(Reader& r) {
  const Units units(r.args.ffn.rows);
  const int n = memory()->n_chosen * kPairs;
  int pass = 0;
  // One copy of the products: the dense unit is number -1.
#pragma unroll 1
  for (int at = units.has_dense() ? -1 : units.first; at < n;
       at = at < 0 ? units.first : units.next(at)) {
    const bool dense = at < 0;
    const Chosen chosen = dense ? Chosen{0, all_rows(r.args)} : memory()->list[at / kPairs];
    unit_of<kSix>(r, {dense ? units.place : at % kPairs, chosen, dense}, pass);
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
    for (int looks = 0; v.w != number; v = look_at(place))
      if (++looks > kPatience) give_up();
    __syncwarp();
    const auto sums = static_cast<int>(shuffle(v.z, (lane & 28) + 1));
    put_group({v.x, v.y, __uint_as_float(v.z), sums}, 1.0f, lane & 3, lane >> 2, branch);
    rows &= rows - 1;
    if (rows != 0) place = place_of(lowest(rows)), v = look_at(place);
    __syncwarp();
    const RowPart<kType> part = row_part_here<kType>(shared_address(branch), lane);
    const float weight = s->weights[row][slot];
    const int g = lane / 4, t = lane % 4;
    float* to = &s->branch_shares[row][slot * 2 + work.half][g + t * 8];
#pragma unroll 1
    for (int tile = 0; tile < kRanks; ++tile) {
      RawSuper raw;
      load_super_here<kType>(raw, work.supers, kDownSupers, tile * 2 + work.half, lane);
      RowSums of;
      dot_super<kType>(raw, part, lane, of);
      const float sum = of.own_total(lane) * weight;
      if (t < 2) store_in(tile, to, sum);
    }
  }
}

// A warp a super-block, one after the other; the dense branch's, which every row has, a warp two
// rows.
__device__ __forceinline__ void down(Reader& r) {
  TogetherShared* s = memory();
  const TogetherArgs& args = r.args;
  const Record* hidden = r.hidden(0, 0);
  int taken = 0;  // warps that have work
  const auto own = [&] { return (r.warp - taken) & (kReaders - 1); };
  const auto work_on = [&](BlockType type, const DownWork& work) {
    if (type == BlockType::Q4_K)
      down_of<BlockType::Q4_K>(work, hidden, r.number);
    else
      down_of<BlockType::Q6_K>(work, hidden, r.number);
  };
  if (has_dense_down()) {
    const std::uint32_t at = r.take();
    const int i = own();
    const unsigned rows = all_rows(args) & 3u << (i & ~1);
    if (i < kDecodeRows && rows != 0)
      work_on(args.dense_down.type, {at, i % 2, {0, rows}, true});
    r.give();
    taken += kDecodeRows;
  }
  const int expert_bytes = kDownSupers * super_bytes(args.down.type), n = s->n_chosen;
#pragma unroll 1
  for (int u = first_of_down(); u < n; u += kRanks * args.down_together) {
    const int count = min(args.down_together, (n - u + kRanks - 1) / kRanks);
    const std::uint32_t at = r.take();
    const int k = own() / 2;
    if (k < count)
      work_on(args.down.type, {at + static_cast<std::uint32_t>(k * expert_bytes), own() % 2,
                               s->list[u + k * kRanks], false});
    r.give();
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

template <bool kSix>
__device__ __forceinline__ void read_all(const TogetherArgs& args, int warp, int lane) {
  TogetherShared* s = memory();
  chain_wait();
  unsigned* const last = Passed{args.ffn.passed}.rows_run();
  Reader r{args, warp, lane, *last + 1};
  // The value of the residual that this thread will own.
  const int row = static_cast<int>(threadIdx.x) / kTileRows;
  float* own = args.ffn.hidden + row * kCols + static_cast<int>(blockIdx.x) * kTileRows +
               static_cast<int>(threadIdx.x) % kTileRows;
  const bool owns = has_tile() && row < args.ffn.rows;
  const float before = owns ? *own : 0.0f;
  if (warp < kDecodeRows) choose(args.ffn, warp, lane);
  await_barrier(shared_address(&s->rows_here), 0);
  if (warp == kReaders - 1 && lane < args.ffn.rows) row_factors(args, lane);
  await_barrier(shared_address(&s->chosen), 0);
  __syncwarp();
  gate_and_up<kSix>(r);
  __syncwarp();
  cluster_await();
  if (has_tile()) down(r);
  __syncwarp();
  cluster_arrive();
  cluster_await();
  if (owns) {
    float total = 0;
#pragma unroll 6
    for (const auto& share : s->branch_shares[row]) total += share[threadIdx.x % kTileRows];
    *own = total + before;
  }
  // Every block has a unit, so it has passed something on that this cluster has read: it knows the
  // number.
  if (blockIdx.x == 0 && threadIdx.x == 0) *last = r.number;
}

__device__ __forceinline__ void init(const TogetherArgs& args) {
  TogetherShared* s = memory();
  for (int i = 0; i < args.slots; ++i) {
    barrier_init(shared_address(&s->full[i]), 1);
    barrier_init(shared_address(&s->empty[i]), kReaders);
  }
  barrier_init(shared_address(&s->rows_here), 1);
  barrier_init(shared_address(&s->chosen), kExperts / kWarp);
  barriers_ready();
}

#endif

template <bool kSix>
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
    Feeder(args, lane).feed();
    __syncwarp();
    cluster_await();
    cluster_arrive();
    cluster_await();
  } else {
    read_all<kSix>(args, warp, lane);
  }
#elif defined(TESSERA_GPU_PTX)
  __trap();  // passed is given where has_runs() says yes
#endif
}

Source source_of(const Matrix& m) {
  const PlaneLayout at = plane_layout(m.type, m.rows, m.cols);
  Source source{.offset = {at.quants, at.extra, at.scales, at.supers},
                .bytes = {4 * at.quant_bytes, 4 * at.extra_bytes, 4 * at.scale_bytes,
                         at.super_bytes},
                .before = {},
                .type = m.type};
  for (int i = 1; i < 4; ++i) source.before[i] = source.before[i - 1] + source.bytes[i - 1];
  return source;
}

}  // namespace
}  // namespace together

bool goes_together(const FfnArgs& args) {
  return args.passed != nullptr && args.rows >= kLeastRoundedRows && args.rows <= kDecodeRows &&
         fits_run(args);
}

GpuError ffn_together(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch) {
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
  int super = 0;
  for (const Source* in : {&args.gate, &args.up, &args.dense_gate, &args.dense_up})
    super = std::max(super, run::super_bytes(in->type));
  args.slot_bytes = kPairSupers * super;
  args.slots = std::min(kMostSlots, kTogetherRing / args.slot_bytes);
  args.down_together =
      std::min(kReaders / 2, args.slot_bytes / (kDownSupers * run::super_bytes(args.down.type)));
  const bool six = super != run::super_bytes(BlockType::Q4_K);
  return launch_kernel(launch, six ? together_kernel<true> : together_kernel<false>,
                       dim3(run::kBlocks), dim3(run::kThreads), kTogetherBytes, args);
}

}  // namespace tessera::gpu
