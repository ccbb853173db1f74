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

int tile_rows(const PackedMatrix& w) {
  const std::int64_t row_bytes =
      uses_records(w.type()) ? activation_bytes(1, w.cols()) : 4 * w.cols();
  return static_cast<int>(
      std::clamp<std::int64_t>(kTileActivationBytes / row_bytes, kMinTileRows, kMaxTileRows));
}

}  // namespace

bool uses_records(BlockType type) {
  return type != BlockType::F32 && type != BlockType::F16 && type != BlockType::BF16;
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
  CHECK(0 <= groups.begin && groups.begin <= groups.end && groups.end <= w.groups(),
        "groups {}..{} of {}", groups.begin, groups.end, w.groups());
  CHECK(w.cols() == x.cols, "{} columns of weights, {} of activations", w.cols(), x.cols);
  CHECK(row_ids.empty() ? n_rows <= x.n_rows : std::ssize(row_ids) >= n_rows, "{} rows", n_rows);
  const PackedLayout layout = packed_layout(w.type());
  const TileKernel kernel = kernels.tile[static_cast<std::size_t>(w.type())];
  MatmulTile tile{};
  tile.weights = w.data() + groups.begin * w.group_bytes();
  tile.group_bytes = w.group_bytes();
  tile.blocks = w.cols() / layout.elems;
  tile.tail_offset = tile.blocks * layout.words * 64;
  tile.cols = w.cols();
  tile.groups = groups.end - groups.begin;
  tile.out_rows = w.rows() - groups.begin * kGroupRows;
  tile.records = x.records;
  tile.record_step = record_rows(x.n_rows);
  tile.x = x.rows;
  tile.x_stride = x.stride;
  tile.out_stride = out_stride;

  std::array<std::int32_t, kMaxTileRows> identity;
  const int most = tile_rows(w);
  for (int first = 0; first < n_rows; first += most) {
    tile.n_rows = std::min(most, n_rows - first);
    if (row_ids.empty()) {
      for (int i = 0; i < tile.n_rows; ++i) identity[static_cast<std::size_t>(i)] = first + i;
      tile.row_ids = identity.data();
    } else {
      tile.row_ids = row_ids.data() + first;
    }
    tile.out = out + first * out_stride + groups.begin * kGroupRows;
    kernel(tile);
  }
}

}  // namespace tessera::cpu
