#include "device/cpu/vector_ops_body.inc"

namespace tessera::cpu {
extern const VectorKernels kVectorKernels_avx2;
const VectorKernels kVectorKernels_avx2 = kVectorKernels;
}  // namespace tessera::cpu
