// How a row of floats becomes the records of activations.h. Local to each file that includes it,
// like matmul_loops.h.
#pragma once

#include "device/cpu/activations.h"
#include "device/cpu/matmul_formats.h"

namespace tessera::cpu {
namespace {

TESSERA_INLINE void quantize_record(const float* x, ActivationRecord& out) {
  std::uint32_t largest = 0;
  for (int i = 0; i < kRecordElems; ++i) {
    const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  constexpr std::uint32_t kInfinity = 0x7f800000u, kSmallest = 0x03800000u;  // 2^-120
  const float peak = __builtin_bit_cast(float, largest);
  const bool usable = largest >= kSmallest && largest < kInfinity;
  const float inverse = usable ? 127.0f / peak : 0.0f;
  float scale = usable ? peak / 127.0f : 0.0f;
  if (largest >= kInfinity) scale = __builtin_nanf("");

  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  std::int32_t sum[2] = {0, 0};
  for (int half = 0; half < 2; ++half) {
    std::int32_t total = 0;
    for (int i = half * 16; i < half * 16 + 16; ++i) {
      const float value = usable ? x[i] : 0.0f;
      const float shifted = value * inverse + kShift;
      const std::int32_t q = __builtin_bit_cast(std::int32_t, shifted) - 0x4b400000;
      out.q[i] = static_cast<std::int8_t>(q);
      total += q;
    }
    sum[half] = total;
  }
  out.scale = scale;
  out.scaled_sum = scale * static_cast<float>(sum[0] + sum[1]);
  out.scaled_half[0] = scale * static_cast<float>(sum[0]);
  out.scaled_half[1] = scale * static_cast<float>(sum[1]);
  out.minus_sum = -(sum[0] + sum[1]);
  out.minus_half[0] = -sum[0];
  out.minus_half[1] = -sum[1];
  out.unused = 0;
}

template <class S>
void quantize_row(const float* row, std::int64_t n_records, ActivationRecord* dst,
                  std::int64_t step) {
  for (std::int64_t b = 0; b < n_records; ++b) {
    quantize_record(row + b * kRecordElems, dst[b * step]);
  }
}

}  // namespace
}  // namespace tessera::cpu
