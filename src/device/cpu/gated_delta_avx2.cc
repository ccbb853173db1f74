#include "device/cpu/gated_delta_body.inc"

namespace tessera::cpu {
extern const DeltaKernels kDeltaKernels_avx2;
const DeltaKernels kDeltaKernels_avx2 = kDeltaKernels;
}  // namespace tessera::cpu
