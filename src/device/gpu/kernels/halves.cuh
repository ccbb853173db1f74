// Products of many rows in tiles: of quantised matrices with rows of halves, of plain ones with
// f32.
#pragma once

#include "device/gpu/kernels/half_rows.cuh"
#include "device/gpu/kernels/tiles.cuh"

namespace tessera::gpu {

// Whether a matrix can meet tokens in tiles.
inline bool has_tiles(const Matrix& m) {
#ifdef TESSERA_GPU_HIP
  (void)m;
  return false;  // a tile ring does not fit 64 KB of shared memory
#else
  return !is_plain(m.type);
#endif
}

// out = (or +=) w * tokens.
GpuError project_tiles(const Launch& launch, const Output& output, const HalfRows& tokens,
                       int rows);

// The same for plain weights and f32 inputs, with a second matrix (or {}) in the same launch.
// in.cols is a multiple of 32.
GpuError project_plain(const Launch& launch, const Input& input, const Output& output,
                       const Output& second, int rows);
// Whether a second matrix fits beside the last rows of the first, whose blocks then take both.
bool shares_plain(const Output& output, const Output& second);

}  // namespace tessera::gpu
