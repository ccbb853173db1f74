#include "device/cpu/gated_delta_body.inc"

namespace tessera::cpu {
extern const DeltaKernels kDeltaKernels_avx512;
const DeltaKernels kDeltaKernels_avx512 = kDeltaKernels;
}  // namespace tessera::cpu
