// F32, F16, BF16: a block is one element.
#include <bit>
#include <cstring>

#include "quant/codec.h"

namespace tessera {

void decode(const BlockF32& block, float* y) {
  std::memcpy(y, block.bits.data(), sizeof(float));
}
void decode(const BlockF16& block, float* y) {
  *y = block.value.get();
}
void decode(const BlockBF16& block, float* y) {
  *y = bf16_to_float(static_cast<std::uint16_t>(block.value.low | (block.value.high << 8)));
}

void encode(const float* x, BlockF32& block) {
  std::memcpy(block.bits.data(), x, sizeof(float));
}
void encode(const float* x, BlockF16& block) {
  block.value.set_bits(float_to_half(*x));
}
void encode(const float* x, BlockBF16& block) {
  block.value.set_bits(float_to_bf16(*x));
}

}  // namespace tessera
