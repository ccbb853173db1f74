// The right-hand side of a matrix product: rows of floats, and the same rows as 8-bit integers.
//
// Quantised weights meet quantised activations. Each 32 elements of a row become one 64-byte
// record: the integers, their scale, and the sums that weight offsets and minima multiply. A
// product with F32, F16 or BF16 weights reads the float rows instead, which are then all that has
// to be there.
//
//   x_i ~ scale * q_i,   scale = max |x| / 127,   q_i = nearest integer, ties to even, in -127..127
//
// If the 32 elements hold an infinity or a NaN, the scale is NaN and every q is 0: each product
// with that row is NaN. If max |x| < 2^-120, they count as zero. The integers and scales are the
// same for every instruction set.
//
// The caller owns all memory. Different rows may be quantised by different threads.
//
//   Activations x{.rows = data, .stride = cols, .n_rows = n, .cols = cols, .records = storage};
//   quantize_rows(kernels, x, 0, n);
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cpu {

struct MatmulKernels;

inline constexpr int kRecordElems = 32;

struct ActivationRecord {
  std::int8_t q[kRecordElems];
  float scale;
  float scaled_sum;      // scale * the sum of q
  float scaled_half[2];  // scale * the sum of q[0..15], q[16..31]
  std::int32_t minus_sum;
  std::int32_t minus_half[2];
  std::int32_t unused;
};
static_assert(sizeof(ActivationRecord) == 64);

// Row r is rows + r * stride, cols floats. Record b of row r is records[b * record_rows(n_rows) +
// r].
struct Activations {
  const float* rows = nullptr;
  std::ptrdiff_t stride = 0;
  std::int64_t n_rows = 0;
  std::int64_t cols = 0;
  ActivationRecord* records = nullptr;  // 64-byte aligned, activation_bytes(n_rows, cols)
};

// Records between two blocks of one row: odd, so that the records of one row fall into all sets of
// a cache.
constexpr std::int64_t record_rows(std::int64_t n_rows) {
  return n_rows | 1;
}

// Bytes of the records; cols is rounded up to whole records.
std::int64_t activation_bytes(std::int64_t n_rows, std::int64_t cols);

// Fills the records of rows [row_begin, row_end). x.cols is a multiple of 32.
void quantize_rows(const MatmulKernels& kernels, const Activations& x, std::int64_t row_begin,
                   std::int64_t row_end);

}  // namespace tessera::cpu
