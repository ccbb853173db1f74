// The down products of few rows: every branch of a row in one kernel with the weighted sum and the
// residual, or branch by branch where norms or other devices come between.
//
// Floor: the bytes of down (9 x 2048 x 512 Q4_K: 5.3 MB, 1.2 us; Q6_K: 7.8 MB, 1.7 us). A block
// takes one 16-row tile; its warps share the columns of all branches, strung together.
#include <algorithm>

#include "device/gpu/kernels/dot.cuh"
#include "device/gpu/kernels/ffn_supers.cuh"
#include "device/gpu/kernels/project_decode.cuh"

namespace tessera::gpu {
namespace {

struct OutputArgs {
  FfnArgs ffn;
  FfnShape shape;
  Planes down;        // of an expert; data unused
  Planes dense_down;  // data null: no dense branch
  const float* h;
  const float* dense_gate;  // [rows] logits, or null
  StagedLayout at;
  bool bytes_too, floats_too;
  bool common = true;
};

// Stages the h of one row's branches from first_slot on; slot shape.slots is the dense branch. Ends
// with a barrier.
__device__ void stage_hidden(const OutputArgs& args, int row, int first_slot, char* base) {
  const FfnShape& shape = args.shape;
  const float* h =
      args.h + static_cast<std::int64_t>(row) * shape.h_stride + first_slot * shape.expert_pad;
  const int total = args.at.padded;
#pragma unroll 3
  for (int start = 0; start < total; start += kDecodeThreads * 4) {
    const int c = start + static_cast<int>(threadIdx.x) * 4;
    float4 v = {0, 0, 0, 0};
    if (c < total) {
      const int at = first_slot * shape.expert_pad + c;
      const bool dense = at >= shape.slots * shape.expert_pad;
      const int within = dense ? at - shape.slots * shape.expert_pad : at % shape.expert_pad;
      const int cols = dense ? args.dense_down.cols : args.down.cols;
      if (within < cols) v = *reinterpret_cast<const float4*>(h + c);
      if (args.floats_too) *reinterpret_cast<float4*>(base + args.at.floats + c * 4) = v;
    }
    if (args.bytes_too) stage_four<1>(base, args.at, 0, c, v);
  }
  __syncthreads();
}

// The part of the staged row that belongs to one branch.
__device__ __forceinline__ Staged<1> branch_of(const Staged<1>& all, int column) {
  Staged<1> x = all;
  x.q += column;
  x.factors += column / 32;
  x.floats += column;
  return x;
}

struct Branch {
  Planes w;
  int column;  // of its h in the staged row
  float weight;
};

// A warp's share of the branches' column tiles, strung together.
struct Share {
  int begin, end;
};
__device__ __forceinline__ Share share_of(const Branch* branches, int n) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int total = 0;
  for (int i = 0; i < n; ++i) total += branches[i].w.col_tiles;
  return {share_begin(total, warp), share_begin(total, warp + 1)};
}

// Adds the branches' parts of [share.begin, share.end) to sum.
template <bool kCommon>
__device__ __forceinline__ void add_branches(const Branch* branches, int n, int tile, Share share,
                                             const Staged<1>& all, float (&sum)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int at = 0;
  for (int i = 0; i < n; ++i) {
    const Branch& branch = branches[i];
    const int from = max(share.begin, at) - at, to = min(share.end, at + branch.w.col_tiles) - at;
    at += branch.w.col_tiles;
    if (from >= to) continue;
    float acc[4] = {0, 0, 0, 0};
    dot_quantised<1, kCommon>(branch.w, tile, from, to, branch_of(all, branch.column), lane, acc);
    sum[0] = __fmaf_rn(acc[0], branch.weight, sum[0]);
    sum[2] = __fmaf_rn(acc[2], branch.weight, sum[2]);
  }
}

// Plain matrices: a warp takes whole rows.
__device__ float add_plain(const Branch* branches, int n, int tile, const Staged<1>& all,
                           float* shares, float result) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = 0; i < n; ++i) {
    if (branches[i].w.col_tiles != 0) continue;
    __syncthreads();
    for (int r = warp; r < kTileRows; r += kDecodeWarps) {
      const int row = tile * kTileRows + r;
      float out[1] = {0};
      if (row < branches[i].w.rows)
        dot_plain_row<1>(branches[i].w, row, branch_of(all, branches[i].column), lane, out);
      if (lane == 0) shares[r] = out[0] * branches[i].weight;
    }
    __syncthreads();
    if (threadIdx.x < kTileRows) result += shares[threadIdx.x];
  }
  return result;
}

// All branches' contribution to the 16 rows of a tile, staged by `stage` while the first of the
// weights are on their way. kCommon: every type is one of is_common().
template <bool kCommon, typename Stage>
__device__ __forceinline__ float output_tile(const Branch* branches, int n, int tile,
                                             const Staged<1>& all, float* shares, Stage stage) {
  float sum[4] = {0, 0, 0, 0};
  Share share = share_of(branches, n);
  bool staged = false;
  if constexpr (kCommon) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    int i = 0, at = 0;
    while (i + 1 < n && at + branches[i].w.col_tiles <= share.begin)
      at += branches[i++].w.col_tiles;
    const Branch& branch = branches[i];
    const int from = share.begin - at, to = min(share.end - at, branch.w.col_tiles);
    const auto early = [&](auto tiles) {
      tiles.load(branch.w, tile, from, min(to, from + kEarlyTiles), lane);
      stage();
      float acc[4] = {0, 0, 0, 0};
      tiles.template dot<1>(branch.w, tile, from, min(to, from + kEarlyTiles),
                            branch_of(all, branch.column), lane, acc);
      sum[0] = __fmaf_rn(acc[0], branch.weight, sum[0]);
      sum[2] = __fmaf_rn(acc[2], branch.weight, sum[2]);
    };
#define TESSERA_EARLY(TYPE) early(EarlyTiles<TYPE>{})
    TESSERA_GPU_FOR_COMMON(branch.w.type, TESSERA_EARLY)
#undef TESSERA_EARLY
    share.begin = at + max(from, min(to, from + kEarlyTiles));
    staged = true;
  }
  if (!staged) stage();
  add_branches<kCommon>(branches, n, tile, share, all, sum);
  const float result = add_shares<1>(shares, sum);
  if constexpr (kCommon) return result;
  return add_plain(branches, n, tile, all, shares, result);
}

template <bool kCommon>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    fused_output_kernel(const TESSERA_GRID_CONSTANT OutputArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  __shared__ float shares[kDecodeWarps * kTileRows];
  __shared__ __align__(16) char room[(kMaxUsed + 1) * sizeof(Branch)];  // no constructor may run
  Branch* branches = reinterpret_cast<Branch*>(room);
  chain_wait();
  chain_trigger();
  const FfnArgs& ffn = args.ffn;
  const int row = static_cast<int>(blockIdx.y);
  const int n = args.shape.slots + (args.shape.dense() ? 1 : 0);
  const int slot = static_cast<int>(threadIdx.x);
  if (slot < n) {
    Branch branch{args.down, slot * args.shape.expert_pad, 1.0f};
    if (slot < args.shape.slots) {
      const std::int64_t pair = static_cast<std::int64_t>(row) * ffn.moe.n_used + slot;
      branch.w.data = ffn.moe.table[ffn.moe.ids[pair]] + ffn.moe.shape.down_offset;
      branch.weight = ffn.moe.weights[pair];
    } else {
      branch.w = args.dense_down;
      if (args.dense_gate != nullptr) branch.weight = sigmoid(args.dense_gate[row]);
    }
    branches[slot] = branch;
  }
  __syncthreads();
  const Staged<1> x(shared, args.at, 1);
  bool staged = false;
  for (int tile = static_cast<int>(blockIdx.x); tile * kTileRows < ffn.n_embd;
       tile += static_cast<int>(gridDim.x)) {
    const int out_row = tile * kTileRows + static_cast<int>(threadIdx.x);
    const bool stores = threadIdx.x < kTileRows && out_row < ffn.n_embd;
    float* at = ffn.hidden + static_cast<std::int64_t>(row) * ffn.n_embd + (stores ? out_row : 0);
    const float before = stores ? *at : 0.0f;
    const float sum = output_tile<kCommon>(branches, n, tile, x, shares, [&] {
      if (!staged) stage_hidden(args, row, 0, shared);
      staged = true;
    });
    if (stores) *at = ffn.layer_scale == nullptr ? before + sum : (before + sum) * *ffn.layer_scale;
    __syncthreads();
  }
}

// One branch of a row: blockIdx.z is the slot.
template <bool kCommon>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    pair_output_kernel(const TESSERA_GRID_CONSTANT OutputArgs args) {
  TESSERA_DYNAMIC_SHARED(char, shared);
  __shared__ float shares[kDecodeWarps * kTileRows];
  __shared__ __align__(16) char room[sizeof(Branch)];  // no constructor may run
  Branch& branch = *reinterpret_cast<Branch*>(room);
  chain_wait();
  chain_trigger();
  const FfnArgs& ffn = args.ffn;
  const int row = static_cast<int>(blockIdx.y), tile = static_cast<int>(blockIdx.x);
  const int slot = static_cast<int>(blockIdx.z);
  const std::int64_t pair = static_cast<std::int64_t>(row) * ffn.moe.n_used + slot;
  const std::byte* expert = expert_at(ffn.moe, ffn.moe.table, ffn.moe.ids[pair]);
  if (expert == nullptr) return;
  if (threadIdx.x == 0) {
    branch = {args.down, 0, 1.0f};
    branch.w.data = expert + ffn.moe.shape.down_offset;
  }
  __syncthreads();
  const Staged<1> x(shared, args.at, 1);
  const float sum = output_tile<kCommon>(&branch, 1, tile, x, shares,
                                         [&] { stage_hidden(args, row, slot, shared); });
  const int out_row = tile * kTileRows + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kTileRows && out_row < ffn.n_embd)
    ffn.pair_out[pair * ffn.n_embd + out_row] = sum;
}

OutputArgs make_args(const FfnArgs& ffn, const FfnScratch& scratch) {
  OutputArgs args{};
  args.ffn = ffn;
  args.shape = ffn_shape(ffn);
  args.h = scratch.h;
  return args;
}

void want(OutputArgs* args, const Matrix& m) {
  (is_plain(m.type) ? args->floats_too : args->bytes_too) = true;
  args->common = args->common && is_common(m.type);
}

}  // namespace

GpuError fused_output(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch) {
  if (has_output_supers(ffn)) return fused_output_supers(launch, ffn, scratch);
  OutputArgs args = make_args(ffn, scratch);
  if (args.shape.slots > 0) {
    args.down = planes_of(ffn.moe.shape.down);
    want(&args, ffn.moe.shape.down);
  }
  if (args.shape.dense()) {
    args.dense_down = planes_of(ffn.dense.down);
    args.dense_gate = ffn.dense.scalar_gate == nullptr ? nullptr : scratch.dense_gate;
    want(&args, ffn.dense.down);
  }
  args.at = staged_layout(args.shape.h_stride, 1, args.bytes_too, args.floats_too);
  // Rows share the machine: a block takes several tiles of its row rather than stage it anew.
  const int tiles = static_cast<int>(row_tiles(ffn.n_embd));
  const int blocks = std::min(tiles, std::max(16, launch.multiprocessors / ffn.rows));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ffn.rows));
  return launch_kernel(launch, args.common ? fused_output_kernel<true> : fused_output_kernel<false>,
                       grid, dim3(kDecodeThreads), static_cast<std::size_t>(args.at.bytes), args);
}

GpuError dense_output(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch,
                      float* out, bool add) {
  const FfnShape shape = ffn_shape(ffn);
  return project_decode(launch,
                        {.input = {.kind = InputKind::plain,
                                   .x = scratch.h + shape.slots * shape.expert_pad,
                                   .stride = shape.h_stride,
                                   .cols = ffn.dense.down.cols},
                         .rows = ffn.rows,
                         .n_outputs = 1,
                         .outputs = {{{ffn.dense.down, out, ffn.n_embd, add}}}},
                        {.rows = scratch.h_rounded, .here = dense_supers(launch, ffn)});
}

GpuError pair_output(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch) {
  OutputArgs args = make_args(ffn, scratch);
  args.down = planes_of(ffn.moe.shape.down);
  want(&args, ffn.moe.shape.down);
  args.at = staged_layout(args.shape.expert_pad, 1, args.bytes_too, args.floats_too);
  const dim3 grid(static_cast<unsigned>(row_tiles(ffn.n_embd)), static_cast<unsigned>(ffn.rows),
                  static_cast<unsigned>(args.shape.slots));
  return launch_kernel(launch, args.common ? pair_output_kernel<true> : pair_output_kernel<false>,
                       grid, dim3(kDecodeThreads), static_cast<std::size_t>(args.at.bytes), args);
}

}  // namespace tessera::gpu
