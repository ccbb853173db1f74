#include "device/cpu/vector_ops_body.inc"

namespace tessera::cpu {
extern const VectorKernels kVectorKernels_avx512;
const VectorKernels kVectorKernels_avx512 = kVectorKernels;
}  // namespace tessera::cpu
