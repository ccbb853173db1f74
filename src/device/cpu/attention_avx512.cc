#include "device/cpu/attention_body.inc"

namespace tessera::cpu {
extern const AttentionKernels kAttentionKernels_avx512;
const AttentionKernels kAttentionKernels_avx512 = kAttentionKernels;
}  // namespace tessera::cpu
