// Inside the matrix product: what matmul.cc hands to the code of one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cpu/activations.h"
#include "device/cpu/isa.h"

namespace tessera::cpu {

inline constexpr int kMaxTileRows = 128;
inline constexpr int kTypeIds = 40;  // one more than the largest BlockType

// One range of groups times at most kMaxTileRows rows of activations. Plain data: the code that
// reads it is compiled for instructions that nothing else may use.
struct MatmulTile {
  const std::byte* weights;  // group_begin's
  std::int64_t group_bytes;  // between two groups
  std::int64_t tail_offset;  // of the tail plane in a packed group
  std::int64_t row_stride;   // between two rows of the file
  std::int64_t blocks;       // blocks of a row
  std::int64_t cols;
  std::int64_t groups;
  std::int64_t out_rows;  // rows of the matrix from group_begin on

  const ActivationRecord* records;  // row 0
  std::int64_t record_step;         // records between blocks
  const float* x;                   // row 0
  std::ptrdiff_t x_stride;
  const std::int32_t* row_ids;  // n_rows of them
  int n_rows;

  float* out;  // column of group_begin's first row
  std::ptrdiff_t out_stride;
};

using TileKernel = void (*)(const MatmulTile&);
// Records of one row, `step` apart.
using QuantizeKernel = void (*)(const float* row, std::int64_t n_records, ActivationRecord* dst,
                                std::int64_t step);

struct MatmulKernels {
  Isa isa;
  QuantizeKernel quantize;
  TileKernel tile[kTypeIds];       // by BlockType, of packed weights
  TileKernel file_tile[kTypeIds];  // of rows of the file; nullptr for float types
};

extern const MatmulKernels kMatmulPortable;
#if defined(__x86_64__)
extern const MatmulKernels kMatmulAvx2;
extern const MatmulKernels kMatmulAvx512;
#endif

}  // namespace tessera::cpu
