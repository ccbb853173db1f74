// The GEMM of long prompts, put together: where decoded weights stand, which matrices go side by
// side and what is launched (gemm.cuh; the kernel is in gemm_kernel.cuh).
#include <algorithm>

#include "device/gpu/kernels/gemm_kernel.cuh"

namespace tessera::gpu {
namespace {

template <int kTile, bool kHidden>
GpuError launch_gemm(const Launch& launch, const GemmArgs& args) {
  const int pairs = (args.rows + 2 * kHalfTileRows - 1) / (2 * kHalfTileRows);
  const int clusters = std::min(pairs * args.row_tiles, std::max(1, launch.multiprocessors / 2));
  return launch_kernel(launch, gemm_kernel<kTile, kHidden>,
                       dim3(static_cast<unsigned>(2 * clusters)), dim3(kThreads), kShared<kTile>,
                       args);
}

int tiles_in(int rows, int tile) {
  return (rows + tile - 1) / tile;
}
int whole_tiles(int rows, int tile) {
  return tiles_in(rows, tile) * tile;
}

std::size_t tile_bytes(int tile, int cols) {
  return static_cast<std::size_t>(tile) * static_cast<std::size_t>(whole_tiles(cols, kTileCols)) *
         2;
}

// Where weights stand in the room, for one launch after another.
struct Room {
  HalfWeights weights, rest;
  int tiles = 0;  // at most

  // `all`: rows of weights. Where they do not fit at once, so many at a time that the last wave of
  // blocks is a whole one.
  Room(const Launch& launch, const GemmRoom& room, int rows, int col_tiles, int tile, int all,
       bool split) {
    weights = {reinterpret_cast<__half*>(room.at), tile, col_tiles};
    const std::int64_t each = std::int64_t{tile} * col_tiles * kTileCols;  // halves of a tile
    const auto halves = static_cast<std::int64_t>(std::min(room.bytes, kMostGemmRoom) / 2);
    const int most = static_cast<int>(halves / (split ? 2 : 1) / each);
    tiles = std::min(most, tiles_in(all, tile));
    if (tiles < tiles_in(all, tile)) {
      const int pairs = tiles_in(rows, 2 * kHalfTileRows);
      const int clusters = std::max(1, launch.multiprocessors / 2);
      const int even = most * pairs / clusters * clusters / pairs;
      if (even > 0) tiles = even;
    }
    if (!split) return;
    rest = weights;
    rest.at += tiles * each;
  }
};

GemmArgs gemm_args(const Room& room, const HalfRows& tokens, const HalfRows& rest, int rows) {
  GemmArgs args;
  args.tokens = tokens;
  args.tokens_rest = rest;
  args.weights = room.weights;
  args.weights_rest = room.rest;
  args.rows = rows;
  return args;
}

// Matrices, and parts of them, side by side until the room is full or all are there.
template <int kTile>
class Side {
 public:
  Side(const Launch& launch, const Room& room, const GemmArgs& args)
      : launch_(launch), room_(room), args_(args) {}

  GpuError add(const Output& output) {
    const int row_tiles = tiles_in(output.w.rows, kTileRows);
    for (int tile = 0; tile < row_tiles;) {
      const int free = (room_.tiles * kTile - used_) / kTileRows;
      if (free == 0 || args_.n_targets == kMaxOutputs) {
        const GpuError error = flush();
        if (error != GpuError{}) return error;
        continue;
      }
      const WeightPart part{tile, std::min(free, row_tiles - tile), used_, 1};
      const GpuError error = is_plain(output.w.type)
                                 ? decode_plain(launch_, output.w, part, room_.weights, room_.rest)
                                 : decode_weights(launch_, output.w, part, room_.weights);
      if (error != GpuError{}) return error;
      const int before = tile * kTileRows, rows = part.n * kTileRows;
      args_.targets[args_.n_targets++] = {output.out + before, output.stride, used_,
                                          std::min(output.w.rows - before, rows), output.add};
      used_ += whole_tiles(rows, kBegin<kTile>);
      tile += part.n;
    }
    return GpuError{};
  }
  GpuError flush() {
    if (args_.n_targets == 0) return GpuError{};
    args_.row_tiles = tiles_in(used_, kTile);
    const GpuError error = launch_gemm<kTile, false>(launch_, args_);
    args_.n_targets = used_ = 0;
    return error;
  }

 private:
  const Launch& launch_;
  const Room& room_;
  GemmArgs args_;
  int used_ = 0;  // rows
};

template <int kTile>
GpuError multiply_all(const Launch& launch, std::span<const Output> outputs, const HalfRows& tokens,
                      const HalfRows& rest, int rows, int products, const GemmRoom& room) {
  int all = 0;
  for (const Output& output : outputs) all += whole_tiles(output.w.rows, kBegin<kTile>);
  const Room weights(launch, room, rows, tokens.col_tiles, kTile, all, products > 2);
  GemmArgs args = gemm_args(weights, tokens, rest, rows);
  args.products = products;
  Side<kTile> side(launch, weights, args);
  for (const Output& output : outputs) {
    const GpuError error = side.add(output);
    if (error != GpuError{}) return error;
  }
  return side.flush();
}

// The rows of weights in a tile: many where that gives most multiprocessors something to do, else
// few; 0 where few do not either.
int tile_for(const Launch& launch, int rows, std::span<const Output> outputs) {
  const auto keep_busy = [&](int tile) {
    int row_tiles = 0;
    for (const Output& output : outputs) row_tiles += tiles_in(output.w.rows, tile);
    const int clusters = std::max(1, launch.multiprocessors / 2);
    return tiles_in(rows, 2 * kHalfTileRows) * row_tiles * 4 >= 3 * clusters;
  };
  if (keep_busy(kGemmTile)) return kGemmTile;
  // Of plain matrices any number of tiles is sooner than the other way.
  return is_plain(outputs.front().w.type) || keep_busy(kSmallTile) ? kSmallTile : 0;
}

bool may_go(const Launch& launch, int rows, int cols, const GemmRoom& room) {
  return launch.gemm && rows >= kGemmRows &&
         std::min(room.bytes, kMostGemmRoom) >= 2 * tile_bytes(kGemmTile, cols);
}

}  // namespace

GpuError find_code(int& compiled_for) {
#if defined(TESSERA_GPU_HIP) || defined(TESSERA_GPU_EMULATED)
  (void)compiled_for;
  return GpuError{};
#else
  cudaFuncAttributes attributes{};
  const GpuError error = cudaFuncGetAttributes(&attributes, gemm_kernel<kGemmTile, false>);
  if (error == GpuError{}) compiled_for = attributes.ptxVersion;
  return error;
#endif
}

bool has_gemm() {
#if defined(TESSERA_GPU_HIP) || defined(TESSERA_GPU_EMULATED)
  return false;
#else
  cudaFuncAttributes attributes{};
  const auto kernel = gemm_kernel<kGemmTile, false>;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
         attributes.binaryVersion == 90 && attributes.sharedSizeBytes > 0;
#endif
}

bool goes_by_gemm(const Launch& launch, int rows, std::span<const Output> outputs,
                  const GemmRoom& room) {
  return !outputs.empty() && may_go(launch, rows, outputs.front().w.cols, room) &&
         tile_for(launch, rows, outputs) != 0;
}

bool hidden_goes_by_gemm(const Launch& launch, int rows, const Matrix& gate, const Matrix& up,
                         const GemmRoom& room) {
  const Output pair[2] = {{.w = gate}, {.w = up}};
  return may_go(launch, rows, gate.cols, room) && tile_for(launch, rows, pair) == kGemmTile;
}

bool takes_small_tiles(const Launch& launch, int rows, std::span<const Output> outputs) {
  return tile_for(launch, rows, outputs) == kSmallTile;
}

GpuError gemm(const Launch& launch, std::span<const Output> outputs, const HalfRows& tokens,
              const HalfRows& rest, int rows, const GemmRoom& room) {
  int products = 1;
  for (const Output& output : outputs)
    // Halves leave nothing of F16.
    if (is_plain(output.w.type))
      products = std::max(products, output.w.type == BlockType::F16 ? 2 : 3);
  return !takes_small_tiles(launch, rows, outputs)
             ? multiply_all<kGemmTile>(launch, outputs, tokens, rest, rows, products, room)
             : multiply_all<kSmallTile>(launch, outputs, tokens, rest, rows, products, room);
}

GpuError gemm_hidden(const Launch& launch, const Matrix& gate, const Matrix& up,
                     Activation activation, const HalfRows& tokens, int rows,
                     const HalfRows& hidden, const GemmRoom& room) {
  // A tile of 256 rows are eight row tiles of each.
  constexpr int kEach = kGemmTile / kTileRows / 2;
  const int all = tiles_in(gate.rows, kTileRows);
  const Room weights(launch, room, rows, tokens.col_tiles, kGemmTile, 2 * all * kTileRows, false);
  for (int first = 0; first < all; first += weights.tiles * kEach) {
    const int n = std::min(weights.tiles * kEach, all - first);
    GpuError error = decode_weights(launch, gate, {first, n, 0, 2}, weights.weights);
    if (error == GpuError{}) error = decode_weights(launch, up, {first, n, 8, 2}, weights.weights);
    if (error != GpuError{}) return error;
    GemmArgs args = gemm_args(weights, tokens, {}, rows);
    args.row_tiles = tiles_in(n, kEach);
    args.hidden = hidden;
    args.hidden.at += std::int64_t{first} * kTileRows / kTileCols * kHalfTile;
    args.hidden_cols = gate.rows - first * kTileRows;
    args.hidden_cols_padded = whole_tiles(args.hidden_cols, kTileCols);
    args.activation = activation;
    error = launch_gemm<kGemmTile, true>(launch, args);
    if (error != GpuError{}) return error;
  }
  return GpuError{};
}

}  // namespace tessera::gpu
