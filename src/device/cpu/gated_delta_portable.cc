#include "device/cpu/gated_delta_body.inc"

namespace tessera::cpu {
extern const DeltaKernels kDeltaKernels_portable;
const DeltaKernels kDeltaKernels_portable = kDeltaKernels;
}  // namespace tessera::cpu
