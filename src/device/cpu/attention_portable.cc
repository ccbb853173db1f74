#include "device/cpu/attention_body.inc"

namespace tessera::cpu {
extern const AttentionKernels kAttentionKernels_portable;
const AttentionKernels kAttentionKernels_portable = kAttentionKernels;
}  // namespace tessera::cpu
