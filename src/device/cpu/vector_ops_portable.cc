#include "device/cpu/vector_ops_body.inc"

namespace tessera::cpu {
extern const VectorKernels kVectorKernels_portable;
const VectorKernels kVectorKernels_portable = kVectorKernels;
}  // namespace tessera::cpu
