#include "device/cpu/matmul.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "device/cpu/matmul_kernels.h"

namespace tessera::cpu {
namespace {

// A tile's activations should stay in half of a second-level cache of 1 MiB while groups pass by.
constexpr std::int64_t kTileActivationBytes = 512 * 1024;
constexpr int kMinTileRows = 16;

int tile_rows(BlockType type, std::int64_t cols) {
  const std::int64_t row_bytes = uses_records(type) ? activation_bytes(1, cols) : 4 * cols;
  return static_cast<int>(
      std::clamp<std::int64_t>(kTileActivationBytes / row_bytes, kMinTileRows, kMaxTileRows));
}

// A matrix of either kind, and what of a tile says where its weights lie.
struct TileSource {
  TileKernel kernel;
  BlockType type;
  std::int64_t rows;
  std::int64_t cols;
  MatmulTile tile;
};

void multiply_tiles(TileSource w, GroupRange groups, const Activations& x,
                    std::span<const std::int32_t> row_ids, int n_rows, float* out,
                    std::ptrdiff_t out_stride) {
  CHECK(0 <= groups.begin && groups.begin <= groups.end && groups.end <= group_count(w.rows),
        "groups {}..{} of {}", groups.begin, groups.end, group_count(w.rows));
  CHECK(w.cols == x.cols, "{} columns of weights, {} of activations", w.cols, x.cols);
  CHECK(row_ids.empty() ? n_rows <= x.n_rows : std::ssize(row_ids) >= n_rows, "{} rows", n_rows);
  MatmulTile& tile = w.tile;
  tile.weights += groups.begin * tile.group_bytes;
  tile.cols = w.cols;
  tile.groups = groups.end - groups.begin;
  tile.out_rows = w.rows - groups.begin * kGroupRows;
  tile.records = x.records;
  tile.record_step = record_rows(x.n_rows);
  tile.x = x.rows;
  tile.x_stride = x.stride;
  tile.out_stride = out_stride;

  std::array<std::int32_t, kMaxTileRows> identity;
  const int most = tile_rows(w.type, w.cols);
  for (int first = 0; first < n_rows; first += most) {
    tile.n_rows = std::min(most, n_rows - first);
    if (row_ids.empty()) {
      for (int i = 0; i < tile.n_rows; ++i) identity[static_cast<std::size_t>(i)] = first + i;
      tile.row_ids = identity.data();
    } else {
      tile.row_ids = row_ids.data() + first;
    }
    tile.out = out + first * out_stride + groups.begin * kGroupRows;
    w.kernel(tile);
  }
}

}  // namespace

bool uses_records(BlockType type) {
  return type != BlockType::F32 && type != BlockType::F16 && type != BlockType::BF16;
}

bool reads_file(BlockType type) {
  return uses_records(type);
}

const MatmulKernels& matmul_kernels(Isa isa) {
  CHECK(isa_supported(isa), "instruction set {}", isa_name(isa));
#if defined(__x86_64__)
  if (isa == Isa::avx2) return kMatmulAvx2;
  if (isa == Isa::avx512) return kMatmulAvx512;
#endif
  return kMatmulPortable;
}

void matmul(const MatmulKernels& kernels, const PackedMatrix& w, GroupRange groups,
            const Activations& x, std::span<const std::int32_t> row_ids, int n_rows, float* out,
            std::ptrdiff_t out_stride) {
  const PackedLayout layout = packed_layout(w.type());
  const std::int64_t blocks = w.cols() / layout.elems;
  const MatmulTile tile{.weights = w.data(),
                        .group_bytes = w.group_bytes(),
                        .tail_offset = blocks * layout.words * 64,
                        .blocks = blocks};
  multiply_tiles({.kernel = kernels.tile[static_cast<std::size_t>(w.type())],
                  .type = w.type(),
                  .rows = w.rows(),
                  .cols = w.cols(),
                  .tile = tile},
                 groups, x, row_ids, n_rows, out, out_stride);
}

void matmul(const MatmulKernels& kernels, const MatrixSource& w, GroupRange groups,
            const Activations& x, std::span<const std::int32_t> row_ids, int n_rows, float* out,
            std::ptrdiff_t out_stride) {
  CHECK(reads_file(w.type), "rows of {} as a file has them", block_type_name(w.type));
  const int elems = packed_layout(w.type).elems;
  CHECK(w.cols >= 1 && w.cols % elems == 0, "{} columns of {}", w.cols, block_type_name(w.type));
  const MatmulTile tile{.weights = w.data,
                        .group_bytes = kGroupRows * w.row_stride_bytes,
                        .row_stride = w.row_stride_bytes,
                        .blocks = w.cols / elems};
  multiply_tiles({.kernel = kernels.file_tile[static_cast<std::size_t>(w.type)],
                  .type = w.type,
                  .rows = w.rows,
                  .cols = w.cols,
                  .tile = tile},
                 groups, x, row_ids, n_rows, out, out_stride);
}

}  // namespace tessera::cpu
