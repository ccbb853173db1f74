// Inside the quant room: one decode/encode pair per block layout. block_format.cc turns them into
// rows.
#pragma once

#include "quant/block_layout.h"

namespace tessera {

// plain.cc
void decode(const BlockF32& block, float* y);
void decode(const BlockF16& block, float* y);
void decode(const BlockBF16& block, float* y);
void encode(const float* x, BlockF32& block);
void encode(const float* x, BlockF16& block);
void encode(const float* x, BlockBF16& block);

// legacy.cc: 32 elements, one scale
void decode(const BlockQ4_0& block, float* y);
void decode(const BlockQ4_1& block, float* y);
void decode(const BlockQ5_0& block, float* y);
void decode(const BlockQ5_1& block, float* y);
void decode(const BlockQ8_0& block, float* y);
void encode(const float* x, BlockQ4_0& block);
void encode(const float* x, BlockQ4_1& block);
void encode(const float* x, BlockQ5_0& block);
void encode(const float* x, BlockQ5_1& block);
void encode(const float* x, BlockQ8_0& block);

// The elements of a block of the K types.
inline constexpr unsigned kSuperElems = 256;

// k_affine.cc: 256 elements, quantised scales and minima
void decode(const BlockQ2_K& block, float* y);
void decode(const BlockQ4_K& block, float* y);
void decode(const BlockQ5_K& block, float* y);
void encode(const float* x, BlockQ2_K& block);
void encode(const float* x, BlockQ4_K& block);
void encode(const float* x, BlockQ5_K& block);

// k_symmetric.cc: 256 elements, quantised signed scales
void decode(const BlockQ3_K& block, float* y);
void decode(const BlockQ6_K& block, float* y);
void encode(const float* x, BlockQ3_K& block);
void encode(const float* x, BlockQ6_K& block);

// codebook.cc: 4-bit indices into a table of levels
void decode(const BlockIQ4_NL& block, float* y);
void decode(const BlockIQ4_XS& block, float* y);
void decode(const BlockMXFP4& block, float* y);
void encode(const float* x, BlockIQ4_NL& block);
void encode(const float* x, BlockIQ4_XS& block);
void encode(const float* x, BlockMXFP4& block);

}  // namespace tessera
