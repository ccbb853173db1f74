// The FFN's branches for many rows: pairs sorted by expert on the device, tensor-core tiles.
#pragma once

#include "device/gpu/kernels/ffn.cuh"
#include "device/gpu/kernels/gemm.cuh"
#include "device/gpu/kernels/halves.cuh"
#include "device/gpu/kernels/tile_product.cuh"

namespace tessera::gpu {

struct TilesScratch {
  HalfRows x;        // the rows
  HalfRows x_rest;   // what halves leave of them; from kGemmRows rows on
  HalfRows h;        // of the pairs, places in expert order
  HalfRows dense_h;  // of the rows
  GemmRoom weights;
  std::int32_t* list = nullptr;   // [pairs]: pair ids in expert order
  std::int32_t* first = nullptr;  // [n_expert + 1]: where each expert's begin
  ExpertTile* tiles = nullptr;
  std::int32_t* n_tiles = nullptr;
};
TilesScratch tiles_scratch(const FfnArgs& args, void* workspace);

// Fills list and first from moe.ids; tiles and n_tiles from these and moe.table.
GpuError sort_pairs(const Launch& launch, const FfnArgs& args, const TilesScratch& scratch);
GpuError cover_pairs(const Launch& launch, const FfnArgs& args, const TilesScratch& scratch);

// Whether a branch can go through tiles.
bool dense_has_tiles(const FfnArgs& args);
bool experts_have_tiles(const FfnArgs& args);

// dense_h from x, then the product into `out` (added to it where `add`).
GpuError dense_tiles(const Launch& launch, const FfnArgs& args, const TilesScratch& scratch,
                     float* out, bool add);
// pair_out of the experts in the table, from x, list and first: of so many, with so many pairs.
GpuError expert_tiles(const Launch& launch, const FfnArgs& args, const TilesScratch& scratch,
                      int experts, int pairs);

}  // namespace tessera::gpu
