// Products of long prompts on Hopper: weights are decoded once, to halves in the tiles that shared
// memory takes, and then multiplied by a GEMM whose operands both come by bulk copies. The tile
// kernels (tiles.cuh) decode a matrix anew for every 128 tokens; of 4,096 that is 32 times.
//
// The halves are those of the tile kernels, and so is the order of sums: a row has the same bits
// whichever way it goes. Tiles are of 256 rows of weights or, but for gate and up together, of 64.
// Plain weights and their f32 inputs go as two halves each, three products
// in all: at most 3 * 2^-22 of a product is lost.
#pragma once

#include <span>

#include "device/gpu/kernels/formats.cuh"
#include "device/gpu/kernels/half_rows.cuh"

namespace tessera::gpu {

// Memory for decoded weights. What does not fit at once is multiplied part by part.
struct GemmRoom {
  std::byte* at = nullptr;  // aligned to 128 bytes
  std::size_t bytes = 0;
};

// Whether these matrices, all quantised or all plain, go this way with so many tokens. Quantised
// ones do where their tiles, large or small, keep most multiprocessors busy.
bool goes_by_gemm(const Launch& launch, int rows, std::span<const Output> outputs,
                  const GemmRoom& room);

// Whether gemm() would take small tiles, of fewer rows of weights.
bool takes_small_tiles(const Launch& launch, int rows, std::span<const Output> outputs);
// As goes_by_gemm(), of gemm_hidden(), which has large tiles alone.
bool hidden_goes_by_gemm(const Launch& launch, int rows, const Matrix& gate, const Matrix& up,
                         const GemmRoom& room);

// outputs[i] = (or +=) w_i * tokens. All are quantised, or all plain: then `rest` is what halves
// leave of the tokens.
GpuError gemm(const Launch& launch, std::span<const Output> outputs, const HalfRows& tokens,
              const HalfRows& rest, int rows, const GemmRoom& room);
// hidden = activation(gate * tokens) * (up * tokens), of one type and shape.
GpuError gemm_hidden(const Launch& launch, const Matrix& gate, const Matrix& up,
                     Activation activation, const HalfRows& tokens, int rows,
                     const HalfRows& hidden, const GemmRoom& room);

// --- Between gemm.cu and gemm_weights.cu ---

// Decoded weights: blocks of `tile` rows by 64 columns, those of the same rows one after another;
// within a block as half_rows.cuh has it.
struct HalfWeights {
  __half* at = nullptr;
  int tile = 0;
  int col_tiles = 0;

  // Where the 128 bytes of a row and a column tile begin.
  __host__ __device__ __half* row(int row, int col_tile) const {
    return at + std::int64_t{row / tile * col_tiles + col_tile} * (tile * kTileCols) +
           row % tile * kTileCols;
  }
};
// Row tiles [first, first + n) of a matrix, to every `apart`th eight rows from row `to_row` on.
struct WeightPart {
  int first = 0, n = 0;
  int to_row = 0, apart = 1;
};
GpuError decode_weights(const Launch& launch, const Matrix& w, const WeightPart& part,
                        const HalfWeights& to);
// Of a plain matrix, and what halves leave of it; apart 1.
GpuError decode_plain(const Launch& launch, const Matrix& w, const WeightPart& part,
                      const HalfWeights& to, const HalfWeights& rest);

}  // namespace tessera::gpu
