#include "device/cpu/attention_body.inc"

namespace tessera::cpu {
extern const AttentionKernels kAttentionKernels_avx2;
const AttentionKernels kAttentionKernels_avx2 = kAttentionKernels;
}  // namespace tessera::cpu
