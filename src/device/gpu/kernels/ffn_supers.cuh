// The FFN's branches of few rows where every matrix of the experts is Q4_K or Q6_K, by whole
// super-blocks (supers.cuh), a row at a time. The router's kernel leaves the row rounded.
#pragma once

#include "device/gpu/kernels/ffn.cuh"
#include "device/gpu/kernels/super_input.cuh"

namespace tessera::gpu {

// Whether expert_hidden and fused_output go this way.
bool has_hidden_supers(const FfnArgs& args, bool with_dense);
GpuError expert_hidden_supers(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch,
                              bool with_dense, bool select);
bool has_output_supers(const FfnArgs& args);
// Whether ffn_all's hidden activations go rounded from the one to the other: where rows share the
// machine, so that a block takes several tiles, it makes whole groups of 32.
inline bool rounds_hidden(const FfnArgs& args) {
  return args.rows >= kLeastRoundedRows && args.rows <= kDecodeRows && has_output_supers(args) &&
         has_hidden_supers(args, args.dense.gate.data != nullptr);
}
GpuError fused_output_supers(const Launch& launch, const FfnArgs& args, const FfnScratch& scratch);

// The pointers of a layer's experts in shared memory: they are older than the kernels of the step,
// so they may be loaded ahead of chain_wait(). Wants a barrier.
__device__ __forceinline__ void load_table(const MoeArgs& moe, const std::byte** to) {
  for (int i = static_cast<int>(threadIdx.x); i < moe.n_expert; i += static_cast<int>(blockDim.x))
    to[i] = moe.table[i];
}

}  // namespace tessera::gpu
