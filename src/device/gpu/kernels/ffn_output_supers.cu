// hidden += the weighted sum of a row's branches, by super-blocks.
//
// Floor: the bytes of down (9 x 2048 x 512 Q4_K: 5.3 MB, 1.2 us; Q6_K: 7.8 MB, 1.7 us). A block
// takes one 16-row tile after another; its warps share the branches, and where there are few of
// them the columns. A warp rounds the hidden activations of its branches for itself: nothing waits
// for a barrier but the sum. Where they come rounded (rounds_hidden) a block takes two tiles at
// once.
#include <algorithm>

#include "device/gpu/kernels/ffn_supers.cuh"

namespace tessera::gpu {
namespace {

constexpr int kMaxItems = 20;  // a branch's columns are shared up to so many warps in all

struct OutputArgs {
  FfnArgs ffn;
  FfnShape shape;
  Planes down;        // of an expert; data unused
  Planes dense_down;  // data null: no dense branch
  const float* h;
  const std::byte* h_rounded;
  const float* dense_gate;  // [rows] logits, or null
  int branches, parts, items;
  int supers;  // of a branch, at most
};

// One warp's part of a branch.
struct Item {
  Planes w;
  float weight;
  int column;      // of its h in the row
  int begin, end;  // super-blocks
};
__device__ __forceinline__ Item item_of(const OutputArgs& args, const std::byte* const* table,
                                        int row, int index) {
  const MoeArgs& moe = args.ffn.moe;
  const int branch = index / args.parts, part = index % args.parts;
  Item item;
  item.weight = 1.0f;
  item.column = branch * args.shape.expert_pad;
  if (branch < args.shape.slots) {
    const std::int64_t pair = static_cast<std::int64_t>(row) * moe.n_used + branch;
    item.w = args.down;
    item.w.data = table[moe.ids[pair]] + moe.shape.down_offset;
    item.weight = moe.weights[pair];
  } else {
    item.w = args.dense_down;
    if (args.dense_gate != nullptr) item.weight = sigmoid(args.dense_gate[row]);
  }
  item.begin = item.w.supers_a_row * part / args.parts;
  item.end = item.w.supers_a_row * (part + 1) / args.parts;
  return item;
}

// Bytes of shared memory in which an item's columns stand, rounded here.
__host__ __device__ constexpr int staged_bytes(bool rounded, int supers) {
  return rounded ? 0 : supers * kSuperBytes;
}

template <bool kSix, bool kRounded>
__global__ void __launch_bounds__(kMaxItems* kWarp, 1)
    output_kernel(const TESSERA_GRID_CONSTANT OutputArgs args) {
  constexpr int kTiles = kRounded ? 2 : 1, kRows = kTiles * kTileRows;
  // [item][staged_bytes]; then the items' sums, f32 [item][kRows].
  TESSERA_DYNAMIC_SHARED(char, shared);
  __shared__ const std::byte* table[kMaxExperts];
  float* shares =
      reinterpret_cast<float*>(shared + args.items * staged_bytes(kRounded, args.supers));
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row = static_cast<int>(blockIdx.y), n = args.ffn.n_embd;
  load_table(args.ffn.moe, table);
  __syncthreads();
  chain_wait();
  chain_trigger();
  float* hidden = args.ffn.hidden + static_cast<std::int64_t>(row) * n;
  const float* h = args.h + static_cast<std::int64_t>(row) * args.shape.h_stride;
  const char* h_rounded = rounded_row(args.h_rounded, args.shape.h_stride, row);
  bool staged = false;
  for (int tile = static_cast<int>(blockIdx.x) * kTiles; tile * kTileRows < n;
       tile += static_cast<int>(gridDim.x) * kTiles) {
    const int out = tile * kTileRows + static_cast<int>(threadIdx.x);
    const bool stores = threadIdx.x < kRows && out < n;
    const float before = stores ? hidden[out] : 0.0f;
    for (int index = warp; index < args.items; index += warps) {
      const Item item = item_of(args, table, row, index);
      char* own = shared + index * staged_bytes(kRounded, args.supers);
      RowSums sums[kTiles];
      for (int super = item.begin; super < item.end; ++super) {
        Eight x{};
        if (!kRounded && !staged) x = load_eight(h + item.column + super * kSuperCols, lane);
        RawSuper raw[kTiles];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) load_either<kSix>(raw[i], item.w, tile + i, super, lane);
        if constexpr (kRounded) {
          const char* at = h_rounded + (item.column / kSuperCols + super) * kSuperBytes;
#pragma unroll
          for (int i = 0; i < kTiles; ++i)
            dot_either<kSix>(item.w.type, raw[i], at, 0, lane, sums[i]);
        } else {
          char* at = own + (super - item.begin) * kSuperBytes;
          if (!staged) round_super(x, 1.0f, lane, at);
          __syncwarp();
          dot_either<kSix>(item.w.type, raw[0], at, 0, lane, sums[0]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const float low = sums[i].total(0) * item.weight, high = sums[i].total(1) * item.weight;
        if (lane % 4 < 2)
          shares[index * kRows + i * kTileRows + lane / 4 + lane % 4 * 8] =
              lane % 4 == 0 ? low : high;
      }
    }
    staged = true;
    __syncthreads();
    if (stores) {
      float total = 0;
      for (int i = 0; i < args.items; ++i) total += shares[i * kRows + threadIdx.x];
      total += before;
      hidden[out] = args.ffn.layer_scale == nullptr ? total : total * *args.ffn.layer_scale;
    }
    __syncthreads();
  }
}

}  // namespace

bool has_output_supers(const FfnArgs& args) {
  const bool dense = args.dense.gate.data != nullptr;
  return args.moe.n_expert > 0 && has_supers(args.moe.shape.down.type) &&
         (!dense || has_supers(args.dense.down.type));
}

GpuError fused_output_supers(const Launch& launch, const FfnArgs& ffn, const FfnScratch& scratch) {
  OutputArgs args{};
  args.ffn = ffn;
  args.shape = ffn_shape(ffn);
  args.h = scratch.h;
  args.h_rounded = scratch.h_rounded;
  args.down = planes_of(ffn.moe.shape.down);
  args.branches = args.shape.slots;
  args.supers = args.down.supers_a_row;
  if (args.shape.dense()) {
    args.dense_down = planes_of(ffn.dense.down);
    args.dense_gate = ffn.dense.scalar_gate == nullptr ? nullptr : scratch.dense_gate;
    args.branches += 1;
    args.supers = std::max(args.supers, args.dense_down.supers_a_row);
  }
  args.parts = std::max(1, std::min(kMaxItems / args.branches, args.down.supers_a_row));
  args.items = args.branches * args.parts;
  args.supers = (args.supers + args.parts - 1) / args.parts;
  // One row has the machine to itself; of more rows several blocks stand side by side.
  const int warps = std::min(kMaxItems, ffn.rows == 1 ? args.items : (args.items + 1) / 2);
  // Rows share the machine: a block takes several tiles of its row rather than round it anew.
  const bool rounded = rounds_hidden(ffn);
  const int tiles = static_cast<int>(row_tiles(ffn.n_embd)) / (rounded ? 2 : 1);
  const int blocks = even_blocks(tiles, std::max(16, 2 * launch.multiprocessors / ffn.rows));
  const bool six = args.down.type == BlockType::Q6_K ||
                   (args.shape.dense() && args.dense_down.type == BlockType::Q6_K);
  const int item = staged_bytes(rounded, args.supers) + kTileRows * 4 * (rounded ? 2 : 1);
  const auto kernel = rounded ? (six ? output_kernel<true, true> : output_kernel<false, true>)
                              : (six ? output_kernel<true, false> : output_kernel<false, false>);
  return launch_kernel(launch, kernel,
                       dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(ffn.rows)),
                       dim3(static_cast<unsigned>(warps * kWarp)),
                       static_cast<std::size_t>(args.items * item), args);
}

}  // namespace tessera::gpu
