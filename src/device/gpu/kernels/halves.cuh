// Rows of f32 as rows of f16 in the column order of the tile kernels, normed as asked.
#pragma once

#include "device/gpu/kernels/input.cuh"
#include "device/gpu/kernels/launch.h"
#include "device/gpu/kernels/tiles.cuh"

namespace tessera::gpu {

// Columns c..c+3 of a row, c a multiple of 4.
__device__ __forceinline__ void store_halves(__half* row, int c, float4 v) {
  __half2* at = reinterpret_cast<__half2*>(row + half_place(c));
  at[0] = __halves2half2(to_half(v.x), to_half(v.z));
  at[4] = __halves2half2(to_half(v.y), to_half(v.w));
}

// out: [rows][padded], padded a multiple of 64; the columns past in.cols become zeros.
GpuError halve_rows(const Launch& launch, const Input& in, int rows, int padded, __half* out);

// Whether a matrix can meet tokens in tiles.
inline bool has_tiles(const Matrix& m) {
#ifdef TESSERA_GPU_HIP
  (void)m;
  return false;  // a tile ring does not fit 64 KB of shared memory
#else
  return !is_plain(m.type);
#endif
}

// out = (or +=) w * tokens; tokens are [rows][padded columns of w] halves.
GpuError project_tiles(const Launch& launch, const Output& output, const __half* tokens, int rows);

// The same for plain weights and f32 inputs, with a second matrix (or {}) in the same launch.
// in.cols is a multiple of 32.
GpuError project_plain(const Launch& launch, const Input& input, const Output& output,
                       const Output& second, int rows);
// Whether a second matrix fits beside the last rows of the first, whose blocks then take both.
bool shares_plain(const Output& output, const Output& second);

}  // namespace tessera::gpu
