// One product of many rows on the tensor cores, of a matrix or of each expert's: what its kernels
// (project_tiles.cu, ffn_tiles.cu) are told.
#pragma once

#include "device/gpu/kernels/formats.cuh"
#include "device/gpu/kernels/half_rows.cuh"
#include "device/gpu/kernels/sizes.h"
#include "device/gpu/kernels/warpgroup.cuh"

namespace tessera::gpu {

// Of experts with some more than kNarrowTokens: gate and up in blocks like those, two on a
// multiprocessor, of which one loads and stores while the other multiplies.
inline constexpr int kMiddleTokens = 96;

// One tile of an expert's tokens: places first .. first + n - 1 of the list.
struct ExpertTile {
  std::int32_t expert, first, n;
};

struct TileProduct {
  Planes a, b;  // gate and up, or one matrix and nothing; of an expert: data unused
  std::int64_t a_offset = 0, b_offset = 0;
  const std::byte* const* table = nullptr;  // experts; null: a and b themselves
  const ExpertTile* tiles = nullptr;        // null: consecutive tokens
  const std::int32_t* n_tiles = nullptr;
  const std::int32_t* list = nullptr;  // pair ids in expert order
  int rows = 0;                        // tokens without tiles
  int divisor = 1;                     // of the list's entries: pair -> row
  bool gather = false;                 // tokens are rows of x that the list names, else places
  HalfRows x;
  Activation activation{};
  HalfRows h;            // gate and up: activation(gate) * up, by place
  float* out = nullptr;  // else [pair or row][stride]
  std::int64_t stride = 0;
  bool add = false;  // to out
  // Of experts' down: column tiles of tokens in shared memory, and blocks of rows a block.
  int stages = 0, row_blocks = 0;
};

// How many tokens a tile of an expert has at most. Of a step it depends on the rows and the router
// alone, so that experts that come in groups are cut as all at once. Where less shared memory is
// there than Hopper has, two blocks of kMiddleTokens do not stand side by side.
inline int expert_tile_tokens(const Launch& launch, const FfnArgs& args) {
  const int mean = args.rows * args.moe.n_used / args.moe.n_expert;
  for (const int tokens : {kFewTokens, kNarrowTokens, kMiddleTokens})
    if (mean <= tokens * 3 / 4 && (tokens != kMiddleTokens || launch.gemm)) return tokens;
  return kTileTokens;
}

// Whether expert_tile_tokens() can be kMost where the code that is compiled now runs.
template <int kMost>
#ifdef TESSERA_GPU_WGMMA
inline constexpr bool kMayHaveTokens = true;
#else
inline constexpr bool kMayHaveTokens = kMost != kMiddleTokens;
#endif

}  // namespace tessera::gpu
