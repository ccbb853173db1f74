// Rows in 16 bits a value that keep 15: 32 values share a power of two, so that none of the bits
// says how large a value is (the idea of the OCP Microscaling formats, with wider integers).
//
//   block = i16 exponent, then up to 32 i16, each standing for itself times 2^exponent
//
// The exponent is the least with which the block's largest value fits, cut to 32767. Any other is
// off by at most half of 2^exponent, 2^-15 of the largest of its block (f16: 2^-12 of itself). A
// block with a value that is not finite becomes NaN, as does one whose exponent cannot be. Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::worker {

inline constexpr std::uint64_t kInt16Block = 32;

constexpr std::uint64_t int16_bytes(std::uint64_t values) {
  return 2 * (values + (values + kInt16Block - 1) / kInt16Block);
}

// `out` and `bytes` have int16_bytes(number of values).
void pack_int16(std::span<const float> values, std::span<std::byte> out);
void unpack_int16(std::span<const std::byte> bytes, std::span<float> out);

}  // namespace tessera::worker
