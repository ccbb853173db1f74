#include "device/cpu/gated_delta.h"

namespace tessera::cpu {

extern const DeltaKernels kDeltaKernels_portable;
extern const DeltaKernels kDeltaKernels_avx2;
extern const DeltaKernels kDeltaKernels_avx512;

Status validate(const GatedDeltaSpec& spec) {
  if (spec.conv_width < 1 || spec.conv_width > kMaxConvWidth)
    return Error::make(ErrorCode::unsupported,
                       "a convolution of width {}; the CPU device computes widths of 1 to {}",
                       spec.conv_width, kMaxConvWidth);
  if (spec.dim_k % kDeltaPanel != 0 || spec.dim_v % kDeltaPanel != 0)
    return Error::make(ErrorCode::unsupported,
                       "gated-delta heads of {} x {}; the CPU device computes multiples of {}",
                       spec.dim_k, spec.dim_v, kDeltaPanel);
  return {};
}

const DeltaKernels& delta_kernels(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return kDeltaKernels_avx512;
    case Isa::avx2:
      return kDeltaKernels_avx2;
    case Isa::portable:
      break;
  }
  return kDeltaKernels_portable;
}

std::size_t delta_chunk_scratch_floats(int dim_k, int dim_v) {
  constexpr std::size_t kChunk = kDeltaChunk;
  return kChunk * (static_cast<std::size_t>(dim_k) + static_cast<std::size_t>(dim_v) + 2 * kChunk);
}

void transpose_taps(const float* taps, const TapsShape& shape, float* out) {
  for (std::int64_t c = 0; c < shape.channels; ++c)
    for (std::int64_t j = 0; j < shape.width; ++j)
      out[j * shape.channels + c] = taps[c * shape.width + j];
}

}  // namespace tessera::cpu
