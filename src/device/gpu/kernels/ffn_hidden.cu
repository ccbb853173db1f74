// act(gate x) * up x of the chosen experts and the dense branch, for few rows.
//
// Floor: the bytes of gate and up (8 experts and the shared one, 2 x 512 x 2048 Q4_K each: 10.6 MB,
// 2.3 us). A block takes one 16-row tile of gate and of up of one (row, slot); its warps share the
// columns.
#include <algorithm>

#include "device/gpu/kernels/dot.cuh"
#include "device/gpu/kernels/ffn_supers.cuh"
#include "device/gpu/kernels/project_decode.cuh"

namespace tessera::gpu {
namespace {

constexpr int kBlocksEach = 2;  // on one multiprocessor

struct HiddenArgs {
  FfnArgs ffn;
  Input in;
  FfnShape shape;
  Planes gate, up;              // of an expert; data unused
  Planes dense_gate, dense_up;  // data null: not here
  float* h;
  float router_factor;
  bool select;
  int expert_tiles;  // row tiles of one expert's gate
  int units;
  StagedLayout at;
  bool bytes_too, floats_too;
};

// gate and up of one type side by side, so that both are in flight together.
template <BlockType kType, int kCols>
__device__ __forceinline__ void dot_both(const Planes& gate, const Planes& up, int row_tile,
                                         int begin, int end, const Staged<kCols>& x, int lane,
                                         float (&g)[4], float (&u)[4]) {
  constexpr int kDepth = 2;
  Tile<kType> a[kDepth], b[kDepth];
  for (int base = begin; base < end; base += kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) a[i].load(gate, row_tile, min(base + i, end - 1), lane);
#pragma unroll
    for (int i = 0; i < kDepth; ++i) b[i].load(up, row_tile, min(base + i, end - 1), lane);
#pragma unroll
    for (int i = 0; i < kDepth; ++i)
      if (base + i < end) dot_tile<kType, kCols>(a[i], x, base + i, lane, g);
#pragma unroll
    for (int i = 0; i < kDepth; ++i)
      if (base + i < end) dot_tile<kType, kCols>(b[i], x, base + i, lane, u);
  }
}

template <int kCols, bool kCommon>
__device__ __forceinline__ void dot_gate_up(const Planes& gate, const Planes& up, int row_tile,
                                            const Staged<kCols>& x, float (&g)[4], float (&u)[4]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int begin = share_begin(gate.col_tiles, warp), end = share_begin(gate.col_tiles, warp + 1);
  if (begin >= end) return;
  if constexpr (!kCommon)
    if (gate.type != up.type) {
      dot_quantised<kCols>(gate, row_tile, begin, end, x, lane, g);
      dot_quantised<kCols>(up, row_tile, begin, end, x, lane, u);
      return;
    }
#define TESSERA_BOTH(TYPE) dot_both<TYPE, kCols>(gate, up, row_tile, begin, end, x, lane, g, u)
  if constexpr (kCommon) {
    TESSERA_BOTH(BlockType::Q4_K);
  } else {
    TESSERA_GPU_FOR_TYPE(gate.type, TESSERA_BOTH)
  }
#undef TESSERA_BOTH
}

// Adds up the warps' shares of both products and stores the activations.
template <int kCols>
__device__ __forceinline__ void store_hidden(const Planes& gate, int row_tile, Activation kind,
                                             const Staged<kCols>& x, float* shares,
                                             const float (&g)[4], const float (&u)[4], float* out,
                                             std::int64_t stride) {
  const float gate_sum = add_shares<kCols>(shares, g);
  const float up_sum = add_shares<kCols>(shares + kDecodeWarps * kTileRows * kCols, u);
  const int r = static_cast<int>(threadIdx.x) / kCols,
            column = static_cast<int>(threadIdx.x) % kCols;
  const int row = row_tile * kTileRows + r;
  if (r < kTileRows && column < x.n && row < gate.rows)
    out[column * stride + row] = activated(kind, gate_sum, up_sum);
  __syncthreads();
}

// The tile's rows of the hidden activations of every staged column; `out` is that of column 0.
// kCommon: gate and up are Q4_K.
template <int kCols, bool kCommon>
__device__ void hidden_tile(const Planes& gate, const Planes& up, int row_tile, Activation kind,
                            const Staged<kCols>& x, float* shares, float* out,
                            std::int64_t stride) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  if (!kCommon && gate.col_tiles == 0) {
    for (int r = warp; r < kTileRows; r += kDecodeWarps) {
      const int row = row_tile * kTileRows + r;
      if (row >= gate.rows) break;
      float g[kCols], u[kCols];
      dot_plain_row<kCols>(gate, row, x, lane, g);
      dot_plain_row<kCols>(up, row, x, lane, u);
#pragma unroll
      for (int j = 0; j < kCols; ++j)
        if (lane == j && j < x.n) out[j * stride + row] = activated(kind, g[j], u[j]);
    }
    return;
  }
  float g[4] = {0, 0, 0, 0}, u[4] = {0, 0, 0, 0};
  dot_gate_up<kCols, kCommon>(gate, up, row_tile, x, g, u);
  store_hidden<kCols>(gate, row_tile, kind, x, shares, g, u, out, stride);
}

__device__ __forceinline__ Planes at_expert(const Planes& shape, const std::byte* data) {
  Planes planes = shape;
  planes.data = data;
  return planes;
}

// The matrices of one unit. False: the expert is not here.
struct Unit {
  Planes gate, up;
  int row_tile;
  float* out;
  Activation kind;
};
__device__ __forceinline__ bool find_unit(const HiddenArgs& args, const Selection& selection,
                                          int at, float* h, Unit& unit) {
  const MoeArgs& moe = args.ffn.moe;
  const int slot = at / args.expert_tiles;
  if (slot >= args.shape.slots) {
    unit.gate = args.dense_gate;
    unit.up = args.dense_up;
    unit.row_tile = at - args.shape.slots * args.expert_tiles;
    unit.out = h + args.shape.slots * args.shape.expert_pad;
    unit.kind = args.ffn.dense.activation;
    return true;
  }
  const std::byte* expert = expert_at(moe, moe.table, selection.ids[slot]);
  if (expert == nullptr) return false;
  unit.gate = at_expert(args.gate, expert);
  unit.up = at_expert(args.up, expert + moe.shape.up_offset);
  unit.row_tile = at % args.expert_tiles;
  unit.out = h + slot * args.shape.expert_pad;
  unit.kind = moe.activation;
  return true;
}

__device__ __forceinline__ void choose(const HiddenArgs& args, int row, Selection& selection) {
  const MoeArgs& moe = args.ffn.moe;
  const int slot = static_cast<int>(threadIdx.x);
  if (args.select) {
    select_experts(moe, moe.logits + static_cast<std::int64_t>(row) * moe.n_expert,
                   args.router_factor, selection);
    if (blockIdx.x == 0 && slot < moe.n_used) {
      moe.ids[row * moe.n_used + slot] = selection.ids[slot];
      moe.weights[row * moe.n_used + slot] = selection.weights[slot];
    }
    return;
  }
  if (slot < moe.n_used) selection.ids[slot] = moe.ids[row * moe.n_used + slot];
  __syncthreads();
}

__global__ void __launch_bounds__(kDecodeThreads, 1)
    expert_hidden_kernel(const TESSERA_GRID_CONSTANT HiddenArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  __shared__ Selection selection;
  const int row = static_cast<int>(blockIdx.y);
  float* scratch = reinterpret_cast<float*>(shared + args.at.bytes);
  float* shares = scratch + (staged_scratch_floats(args.in, 1) + 3) / 4 * 4;
  float* h = args.h + static_cast<std::int64_t>(row) * args.shape.h_stride;
  const Staged<1> x(shared, args.at, 1);
  int at = static_cast<int>(blockIdx.x);
  Unit unit;
  chain_wait();
  chain_trigger();
  choose(args, row, selection);
  stage_input<1>(args.in, row, 1, shared, args.at, args.bytes_too, args.floats_too, scratch);
  for (; at < args.units; at += static_cast<int>(gridDim.x))
    if (find_unit(args, selection, at, h, unit))
      hidden_tile<1, false>(unit.gate, unit.up, unit.row_tile, unit.kind, x, shares, unit.out, 0);
}

template <int kCols, bool kCommon>
__global__ void __launch_bounds__(kDecodeThreads, kCommon&& kCols == 1 ? kBlocksEach : 1)
    dense_hidden_kernel(const TESSERA_GRID_CONSTANT HiddenArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  prefetch_block(args.dense_gate.data + static_cast<std::int64_t>(blockIdx.x) *
                                            args.dense_gate.col_tiles *
                                            args.dense_gate.quant_tile_bytes,
                 args.dense_gate.col_tiles * args.dense_gate.quant_tile_bytes);
  chain_wait();
  chain_trigger();
  const int first = static_cast<int>(blockIdx.y) * kCols;
  const int n = min(kCols, args.ffn.rows - first);
  float* scratch = reinterpret_cast<float*>(shared + args.at.bytes);
  float* shares = scratch + (staged_scratch_floats(args.in, kCols) + 3) / 4 * 4;
  stage_input<kCols>(args.in, first, n, shared, args.at, args.bytes_too, args.floats_too, scratch);
  const Staged<kCols> x(shared, args.at, n);
  float* h = args.h + static_cast<std::int64_t>(first) * args.shape.h_stride +
             args.shape.slots * args.shape.expert_pad;
  for (int unit = static_cast<int>(blockIdx.x); unit < args.units;
       unit += static_cast<int>(gridDim.x))
    hidden_tile<kCols, kCommon>(args.dense_gate, args.dense_up, unit, args.ffn.dense.activation, x,
                                shares, h, args.shape.h_stride);
}

void want(HiddenArgs* args, const Matrix& m) {
  (is_plain(m.type) ? args->floats_too : args->bytes_too) = true;
}

std::size_t shared_bytes(HiddenArgs* args, int n_cols) {
  args->at = staged_layout(args->in.cols, n_cols, args->bytes_too, args->floats_too);
  return static_cast<std::size_t>(args->at.bytes) +
         sizeof(float) *
             static_cast<std::size_t>((staged_scratch_floats(args->in, n_cols) + 3) / 4 * 4 +
                                      2 * kDecodeWarps * kTileRows * n_cols);
}

HiddenArgs make_args(const FfnArgs& ffn, const FfnScratch& scratch, bool dense, const float* norm) {
  HiddenArgs args{};
  args.ffn = ffn;
  args.in = ffn_input(ffn, norm);
  args.shape = ffn_shape(ffn);
  args.h = scratch.h;
  args.router_factor = router_factor(ffn);
  if (dense) {
    args.dense_gate = planes_of(ffn.dense.gate);
    args.dense_up = planes_of(ffn.dense.up);
    args.units = args.dense_gate.row_tiles;
    want(&args, ffn.dense.gate);
    want(&args, ffn.dense.up);
  }
  return args;
}

}  // namespace

GpuError expert_hidden(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch,
                       bool with_dense, bool select) {
  if (has_hidden_supers(ffn, with_dense))
    return expert_hidden_supers(launch, ffn, scratch, with_dense, select);
  HiddenArgs args = make_args(ffn, scratch, with_dense, expert_norm(ffn));
  args.gate = planes_of(ffn.moe.shape.gate);
  args.up = planes_of(ffn.moe.shape.up);
  args.select = select;
  args.expert_tiles = args.gate.row_tiles;
  args.units += args.shape.slots * args.expert_tiles;
  want(&args, ffn.moe.shape.gate);
  want(&args, ffn.moe.shape.up);
  const std::size_t shared = shared_bytes(&args, 1);
  // Rows share the machine: a block takes several units of its row rather than stage it anew.
  const int wanted = std::max(1, launch.multiprocessors) * kBlocksEach / ffn.rows;
  const int blocks = std::min(args.units, std::max(wanted, 16));
  return launch_kernel(launch, expert_hidden_kernel,
                       dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(ffn.rows)),
                       dim3(kDecodeThreads), shared, args);
}

int dense_supers(const Launch& launch, const FfnArgs& ffn) {
  return has_gated_stream(ffn_input(ffn, ffn.norm), ffn.dense.gate, ffn.dense.up)
             ? gated_supers(launch, ffn.dense.gate, ffn.dense.down)
             : 0;
}

GpuError dense_hidden(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch) {
  const Input input = ffn_input(ffn, ffn.norm);
  if (has_gated_stream(input, ffn.dense.gate, ffn.dense.up)) {
    const FfnShape shape = ffn_shape(ffn);
    return gated_stream(launch,
                        {.input = input,
                         .rows = ffn.rows,
                         .gate = ffn.dense.gate,
                         .up = ffn.dense.up,
                         .activation = ffn.dense.activation,
                         .out = scratch.h + shape.slots * shape.expert_pad,
                         .stride = shape.h_stride,
                         .rounded = scratch.h_rounded,
                         .supers = dense_supers(launch, ffn)},
                        {.rows = scratch.x_rounded});
  }
  HiddenArgs args = make_args(ffn, scratch, true, ffn.norm);
  const bool q4_k = ffn.dense.gate.type == BlockType::Q4_K && ffn.dense.up.type == BlockType::Q4_K;
  const int blocks = std::min(args.units, std::max(1, launch.multiprocessors) * kBlocksEach);
  const auto grid = [&](int n_cols) {
    return dim3(static_cast<unsigned>(blocks),
                static_cast<unsigned>((ffn.rows + n_cols - 1) / n_cols));
  };
  if (ffn.rows > 1) {
    const std::size_t shared = shared_bytes(&args, kDecodeRows);
    if (shared + 2048 <= shared_limit())
      return launch_kernel(
          launch,
          q4_k ? dense_hidden_kernel<kDecodeRows, true> : dense_hidden_kernel<kDecodeRows, false>,
          grid(kDecodeRows), dim3(kDecodeThreads), shared, args);
  }
  const std::size_t shared = shared_bytes(&args, 1);
  return launch_kernel(launch, q4_k ? dense_hidden_kernel<1, true> : dense_hidden_kernel<1, false>,
                       grid(1), dim3(kDecodeThreads), shared, args);
}

}  // namespace tessera::gpu
