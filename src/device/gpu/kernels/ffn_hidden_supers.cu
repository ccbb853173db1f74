// act(gate x) * up x of the chosen experts and the dense branch by super-blocks.
//
// Floor: the bytes of gate and up (8 experts and the shared one, 2 x 512 x 2048 Q4_K each: 10.6 MB,
// 2.3 us). A block's warps share the columns of one 16-row tile of gate and of up, or of two tiles
// whose 32 activations it leaves rounded. The input comes rounded from the router's kernel. Each
// block chooses the experts for itself.
#include <algorithm>

#include "device/gpu/kernels/ffn_supers.cuh"
#include "device/gpu/kernels/project_decode.cuh"

namespace tessera::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kBlocksEach = 3;  // on one multiprocessor

struct HiddenArgs {
  FfnArgs ffn;
  Input in;
  FfnShape shape;
  Planes gate, up;              // of an expert; data unused
  Planes dense_gate, dense_up;  // data null: not here
  const std::byte* x;           // rounded rows
  float* h;
  std::byte* h_rounded;
  float router_factor;
  bool select;
  int expert_units;  // of kTiles row tiles of one expert's gate
  int units;
  int supers, part_bits;                      // 1 << part_bits warps share the columns of a unit
  std::int64_t down_bytes, dense_down_bytes;  // of the down matrix, and what a unit fetches of it
  std::int64_t down_share, dense_down_share;
};

struct Unit {
  const std::byte *gate, *up, *down;  // gate null: the expert is not here
  int slot, index;                    // of the unit in its branch
  bool dense;
};
__device__ __forceinline__ Unit unit_at(const HiddenArgs& args, const Selection& selection,
                                        const std::byte* const* table, int at) {
  const int slot = at / args.expert_units;
  if (slot >= args.shape.slots)
    return {args.dense_gate.data,
            args.dense_up.data,
            args.ffn.dense.down.data,
            args.shape.slots,
            at - args.shape.slots * args.expert_units,
            true};
  const ExpertShape& shape = args.ffn.moe.shape;
  const std::byte* expert = expert_at(args.ffn.moe, table, selection.ids[slot]);
  if (expert == nullptr) return {nullptr, nullptr, nullptr, slot, 0, false};
  return {expert, expert + shape.up_offset, expert + shape.down_offset,
          slot,   at % args.expert_units,   false};
}

// Where a unit's matrix lies: an expert's or the dense branch's.
__device__ __forceinline__ Planes planes_at(bool dense, const Planes& of_dense,
                                            const Planes& of_expert, const std::byte* data) {
  Planes p;
  p.data = data;
  p.extra = dense ? of_dense.extra : of_expert.extra;
  p.scales = dense ? of_dense.scales : of_expert.scales;
  p.supers = dense ? of_dense.supers : of_expert.supers;
  p.supers_a_row = of_expert.supers_a_row;  // of the same columns
  p.type = dense ? of_dense.type : of_expert.type;
  return p;
}

// Fetches the unit's share of its branch's down matrix into L2: the next kernel reads it.
__device__ __forceinline__ void prefetch_down(const HiddenArgs& args, const Unit& unit,
                                              int thread) {
  const std::int64_t bytes = unit.dense ? args.dense_down_bytes : args.down_bytes;
  const std::int64_t share = unit.dense ? args.dense_down_share : args.down_share;
  const std::int64_t from = share * unit.index, to = min(bytes, from + share);
  for (std::int64_t at = from + thread * 128; at < to; at += (kWarp * 128) << args.part_bits)
    prefetch_line(reinterpret_cast<const char*>(unit.down) + at);
}

// kSix: matrices may be Q6_K; else every one is Q4_K.
template <bool kSix>
__device__ __forceinline__ void dot_both(const HiddenArgs& args, const Unit& unit, int tile,
                                         int begin, int end, const char* x, int lane,
                                         RowSums& of_gate, RowSums& of_up) {
  if (unit.gate == nullptr) return;
  const Planes gate = planes_at(unit.dense, args.dense_gate, args.gate, unit.gate);
  const Planes up = planes_at(unit.dense, args.dense_up, args.up, unit.up);
  for (int super = begin; super < end; ++super) {
    const char* row = x + super * kSuperBytes;
    RawSuper first, second;
    load_either<kSix>(first, gate, tile, super, lane);
    load_either<kSix>(second, up, tile, super, lane);
    dot_either<kSix>(gate.type, first, row, 0, lane, of_gate);
    dot_either<kSix>(up.type, second, row, 0, lane, of_up);
  }
}

// The last block of a row that chooses: what it chose, for the kernels behind this one. By one
// warp.
__device__ __forceinline__ void write_choice(const HiddenArgs& args, int row, int lane,
                                             Selection& selection) {
  const MoeArgs& moe = args.ffn.moe;
  weigh_experts(moe, moe.logits + static_cast<std::int64_t>(row) * moe.n_expert, args.router_factor,
                selection);
  __syncwarp();
  if (lane >= moe.n_used) return;
  moe.ids[row * moe.n_used + lane] = selection.ids[lane];
  moe.weights[row * moe.n_used + lane] = selection.weights[lane];
}

// Where a unit's activations go.
struct Target {
  int column;  // of the row's h; -1: nowhere
  int rows;
  Activation kind;
};
template <int kTiles>
__device__ __forceinline__ Target target_of(const HiddenArgs& args, const Unit& unit) {
  const int rows = unit.dense ? args.dense_gate.rows : args.gate.rows;
  const int row = unit.index * kTiles * kTileRows;
  return {unit.gate == nullptr ? -1 : unit.slot * args.shape.expert_pad + row, rows - row,
          unit.dense ? args.ffn.dense.activation : args.ffn.moe.activation};
}
// One tile: as they are. Two: rounded, a group.
template <int kTiles>
__device__ __forceinline__ void put_hidden(const HiddenArgs& args, int row, const Target& target,
                                           int r, float value) {
  if constexpr (kTiles == 1) {
    if (r < target.rows)
      args.h[static_cast<std::int64_t>(row) * args.shape.h_stride + target.column + r] = value;
  } else {
    char* to = rounded_row(args.h_rounded, args.shape.h_stride, row);
    round_lanes(value, r, target.column / 32 % 8, to + target.column / kSuperCols * kSuperBytes);
  }
}

// The sums of both products of a warp: [gate 16][up 16].
__device__ __forceinline__ void put_both(const RowSums& gate, const RowSums& up, int lane,
                                         float* shares) {
  const float value[4] = {gate.total(0), gate.total(1), up.total(0), up.total(1)};
  const int g = lane / 4, t = lane % 4;
  const float low = t % 2 == 0 ? value[0] : value[1], high = t % 2 == 0 ? value[2] : value[3];
  shares[t / 2 * 16 + t % 2 * 8 + g] = t < 2 ? low : high;
}

// kOnce: a block has one unit at most. A loop's invariants would not fit the registers.
template <bool kSix, int kTiles, bool kOnce>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksEach)
    hidden_kernel(const TESSERA_GRID_CONSTANT HiddenArgs args) {
  constexpr int kUnitRows = kTiles * kTileRows;
  __shared__ Selection selection;
  __shared__ Candidates candidates;
  __shared__ const std::byte* table[kMaxExperts];
  __shared__ float shares[kWarps][kTiles][2 * kTileRows];
  __shared__ Target targets[kWarps];
  __shared__ float squares[kWarps * kWarp];
  const int row = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int slots = kWarps >> args.part_bits, slot = warp >> args.part_bits;
  const int part = warp - (slot << args.part_bits);
  const int begin = args.supers * part >> args.part_bits;
  const int end = args.supers * (part + 1) >> args.part_bits;
  load_table(args.ffn.moe, table);
  chain_wait();
  chain_trigger();
  const MoeArgs& moe = args.ffn.moe;
  const char* x = rounded_row(args.x, args.in.cols, row);
  // On its way while the experts are ranked.
  const bool brings = static_cast<int>(threadIdx.x) < args.supers;
  const float square = brings ? rounded_squares(x, args.in.cols)[threadIdx.x] : 0.0f;
  if (args.select)
    rank_groups(moe, moe.logits + static_cast<std::int64_t>(row) * moe.n_expert, args.router_factor,
                candidates);
  else if (static_cast<int>(threadIdx.x) < moe.n_used)
    selection.ids[threadIdx.x] = moe.ids[row * moe.n_used + threadIdx.x];
  if (brings) squares[threadIdx.x] = square;
  __syncthreads();
  if (args.select) {
    choose_ranked(moe, candidates, selection);
    __syncthreads();
  }
  const int blocks = static_cast<int>(gridDim.x) - (args.select ? 1 : 0);
  if (static_cast<int>(blockIdx.x) == blocks) {
    if (warp == 0) write_choice(args, row, lane, selection);
    return;
  }
  const int step = blocks * slots;
  for (int base = static_cast<int>(blockIdx.x) * slots; base < args.units; base += step) {
    const bool mine = base + slot < args.units;
    const Unit unit = mine ? unit_at(args, selection, table, base + slot) : Unit{};
    if (part == 0 && lane == 0) targets[slot] = target_of<kTiles>(args, unit);
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      RowSums of_gate, of_up;
      dot_both<kSix>(args, unit, unit.index * kTiles + tile, begin, end, x, lane, of_gate, of_up);
      put_both(of_gate, of_up, lane, shares[warp][tile]);
    }
    // The first round: the next kernel's weights.
    if (base < step && unit.down != nullptr) prefetch_down(args, unit, part * kWarp + lane);
    __syncthreads();
    const int of = static_cast<int>(threadIdx.x) / kUnitRows,
              r = static_cast<int>(threadIdx.x) % kUnitRows;
    if (of < slots && targets[of].column >= 0) {
      float gate = 0, up = 0;
      for (int i = of << args.part_bits; i < (of + 1) << args.part_bits; ++i) {
        gate += shares[i][r / kTileRows][r % kTileRows];
        up += shares[i][r / kTileRows][kTileRows + r % kTileRows];
      }
      const float factor = row_factor(args.in, squares);
      put_hidden<kTiles>(args, row, targets[of], r,
                         activated(targets[of].kind, gate * factor, up * factor));
    }
    if (kOnce) break;
    if (base + step < args.units) __syncthreads();
  }
}

// Whole lines.
std::int64_t line_share(std::int64_t bytes, int shares) {
  return (bytes / shares + 127) / 128 * 128;
}

}  // namespace

bool has_hidden_supers(const FfnArgs& args, bool with_dense) {
  if (args.n_embd % kSuperCols != 0 || args.n_embd / kSuperCols > kWarps * kWarp) return false;
  if (!has_supers(args.moe.shape.gate.type) || !has_supers(args.moe.shape.up.type)) return false;
  return !with_dense || (has_supers(args.dense.gate.type) && has_supers(args.dense.up.type));
}

GpuError expert_hidden_supers(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch,
                              bool with_dense, bool select) {
  const bool rounds = select && rounds_hidden(ffn);
  const int each = rounds ? 2 : 1;  // tiles a unit
  HiddenArgs args{};
  args.ffn = ffn;
  args.in = ffn_input(ffn, expert_norm(ffn));
  args.shape = ffn_shape(ffn);
  args.x = scratch.x_rounded;
  args.h = scratch.h;
  args.h_rounded = scratch.h_rounded;
  args.router_factor = router_factor(ffn);
  args.select = select;
  args.gate = planes_of(ffn.moe.shape.gate);
  args.up = planes_of(ffn.moe.shape.up);
  args.expert_units = args.gate.row_tiles / each;
  args.units = args.shape.slots * args.expert_units;
  if (with_dense) {
    args.dense_gate = planes_of(ffn.dense.gate);
    args.dense_up = planes_of(ffn.dense.up);
    args.dense_down_bytes =
        plane_layout(ffn.dense.down.type, ffn.dense.down.rows, ffn.dense.down.cols).bytes;
    args.dense_down_share = line_share(args.dense_down_bytes, args.dense_gate.row_tiles / each);
    args.units += args.dense_gate.row_tiles / each;
  }
  args.down_bytes = ffn.moe.shape.bytes - ffn.moe.shape.down_offset;
  args.down_share = line_share(args.down_bytes, args.expert_units);
  args.supers = ffn.n_embd / kSuperCols;
  while (1 << args.part_bits < kWarps && 2 << args.part_bits <= args.supers) ++args.part_bits;
  const int slots = kWarps >> args.part_bits;
  // Rows share the machine: a block takes several units of its row rather than choose anew.
  const int machine = std::max(1, launch.multiprocessors) * kBlocksEach;
  const int blocks = even_blocks((args.units + slots - 1) / slots,
                                 std::max(machine / ffn.rows - (select ? 1 : 0), 16));
  const auto is_q4 = [](const Matrix& m) { return m.type == BlockType::Q4_K; };
  const bool q4 = is_q4(ffn.moe.shape.gate) && is_q4(ffn.moe.shape.up) &&
                  (!with_dense || (is_q4(ffn.dense.gate) && is_q4(ffn.dense.up)));
  if (!select) {
    const GpuError error = round_rows(launch, args.in, ffn.rows, scratch.x_rounded);
    if (error != GpuError{}) return error;
  }
  const bool once = blocks * slots >= args.units;
  const auto kernel = rounds ? (q4 ? hidden_kernel<false, 2, false> : hidden_kernel<true, 2, false>)
                      : once
                          ? (q4 ? hidden_kernel<false, 1, true> : hidden_kernel<true, 1, true>)
                          : (q4 ? hidden_kernel<false, 1, false> : hidden_kernel<true, 1, false>);
  return launch_kernel(
      launch, kernel,
      dim3(static_cast<unsigned>(blocks + (select ? 1 : 0)), static_cast<unsigned>(ffn.rows)),
      dim3(kWarps * kWarp), 0, args);
}

}  // namespace tessera::gpu
